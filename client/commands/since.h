// Points in time as people give them.
#ifndef AMPD_CLIENT_COMMANDS_SINCE_H_
#define AMPD_CLIENT_COMMANDS_SINCE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ampd::client {

// "2h", "30m", "7d" ago, or a time of RFC 3339. INVALID_ARGUMENT, of --since, for anything else.
absl::StatusOr<absl::Time> ParseSince(absl::string_view text);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_SINCE_H_
