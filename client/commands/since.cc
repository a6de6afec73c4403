#include "client/commands/since.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/spec/names.h"

namespace ampd::client {

absl::StatusOr<absl::Time> ParseSince(absl::string_view text) {
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error)) return time;
  absl::Duration age;
  double days = 0;
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "d") && absl::SimpleAtod(number, &days)) {
    age = absl::Hours(24 * days);
  } else if (!absl::ParseDuration(text, &age)) {
    age = -absl::InfiniteDuration();
  }
  if (age >= absl::ZeroDuration() && absl::Now() - age >= absl::UnixEpoch()) return absl::Now() - age;
  return absl::InvalidArgumentError(absl::StrCat("--since: ", Quoted(std::string(text)),
                                                 " is no age like 30m, 2h or 7d, and no time like "
                                                 "2026-01-31T12:00:00Z"));
}

}  // namespace ampd::client
