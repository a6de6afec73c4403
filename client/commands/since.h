// Points in time as people give them.
#ifndef AMPD_CLIENT_COMMANDS_SINCE_H_
#define AMPD_CLIENT_COMMANDS_SINCE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ampd::client {

// "2h", "30m", "7d" ago; a time of RFC 3339; or, of the user's time zone, a day or "2026-01-31 12:00:01".
// INVALID_ARGUMENT, of --since, for anything else.
absl::StatusOr<absl::Time> ParseSince(absl::string_view text);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_SINCE_H_
