// Which time zone local times are in.
#ifndef AMPD_TESTS_UNIT_CLIENT_TIME_ZONE_H_
#define AMPD_TESTS_UNIT_CLIENT_TIME_ZONE_H_

#include <stdlib.h>

#include <string>

#include "absl/types/optional.h"

namespace ampd::client {

// TZ is `zone` as long as it lives, e.g. "UTC" or, west of Greenwich counted positive, "IST-5:30".
class ScopedTimeZone {
 public:
  explicit ScopedTimeZone(const char* zone) {
    if (const char* before = getenv("TZ")) before_ = before;
    setenv("TZ", zone, 1);
  }
  ~ScopedTimeZone() {
    if (before_) {
      setenv("TZ", before_->c_str(), 1);
    } else {
      unsetenv("TZ");
    }
  }
  ScopedTimeZone(const ScopedTimeZone&) = delete;
  ScopedTimeZone& operator=(const ScopedTimeZone&) = delete;

 private:
  absl::optional<std::string> before_;
};

}  // namespace ampd::client

#endif  // AMPD_TESTS_UNIT_CLIENT_TIME_ZONE_H_
