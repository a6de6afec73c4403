// Keys of a terminal.
#ifndef AMPD_CLIENT_TOP_KEYS_H_
#define AMPD_CLIENT_TOP_KEYS_H_

#include <string>
#include <vector>

namespace ampd::client {

// Takes the keys from the front of what a terminal sent: single bytes, "q", and the escape sequences of other keys,
// "\x1b[A" or "\x1bOA". A sequence whose end is still to come stays in `sent`.
std::vector<std::string> TakeKeys(std::string* sent);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_KEYS_H_
