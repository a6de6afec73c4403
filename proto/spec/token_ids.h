// Sequences of token numbers, of which no vocabulary tells the words, as text: "15496 995".
#ifndef AMPD_PROTO_SPEC_TOKEN_IDS_H_
#define AMPD_PROTO_SPEC_TOKEN_IDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

// The ids in `text`, decimal, with white space between them. INVALID_ARGUMENT naming the first that is no id below
// `vocabulary`.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text, int64_t vocabulary);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_TOKEN_IDS_H_
