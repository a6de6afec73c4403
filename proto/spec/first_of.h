// Lists in messages, which may be long.
#ifndef AMPD_PROTO_SPEC_FIRST_OF_H_
#define AMPD_PROTO_SPEC_FIRST_OF_H_

#include <cstddef>
#include <string>
#include <vector>

namespace ampd {

// "a, b, c and 4 more": the first `most` names, and how many that leaves out.
std::string FirstOf(const std::vector<std::string>& names, size_t most);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_FIRST_OF_H_
