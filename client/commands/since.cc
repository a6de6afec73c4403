#include "client/commands/since.h"

#include <time.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

// As `list` prints times, in the user's time zone, by the C library as there: "2026-01-31 12:00:01", or the day alone.
bool ParseLocalTime(const std::string& text, absl::Time* time) {
  for (const char* format : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    struct tm parts = {};
    const char* end = strptime(text.c_str(), format, &parts);
    if (end == nullptr || *end != '\0') continue;
    parts.tm_isdst = -1;
    const struct tm asked = parts;
    const time_t seconds = mktime(&parts);
    // Of a day that its month has not, mktime makes another.
    if (seconds < 0 || parts.tm_mday != asked.tm_mday || parts.tm_mon != asked.tm_mon) return false;
    *time = absl::FromTimeT(seconds);
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<absl::Time> ParseSince(absl::string_view text) {
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error)) return time;
  if (ParseLocalTime(std::string(text), &time)) return time;
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
                                                 "2026-01-31, '2026-01-31 12:00:00' or 2026-01-31T12:00:00Z"));
}

}  // namespace ampd::client
