// Job ids: ULIDs in lower case (https://github.com/ulid/spec): 48 bits of milliseconds, 80 random bits, Crockford's
// base 32, 26 characters.
#ifndef AMPD_SERVER_JOBS_JOB_ID_H_
#define AMPD_SERVER_JOBS_JOB_ID_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace ampd {

// Not thread-safe.
class JobIdGenerator {
 public:
  // The next ids sort after `id`, that of an earlier generator. Without effect when `id` is no ULID.
  void StartAfter(const std::string& id);

  // Each id sorts after the one before, also within a millisecond and when the clock goes back.
  std::string Next(absl::Time now);

 private:
  // Big-endian: 6 bytes of milliseconds, 10 random ones.
  std::array<uint8_t, 16> last_ = {};
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_JOB_ID_H_
