// Samples that cannot be decoded: left out, named and counted.
#ifndef AMPD_ENGINE_DATA_DAMAGE_H_
#define AMPD_ENGINE_DATA_DAMAGE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/core/mutex.h"

namespace ampd::data {

struct DamagedSample {
  // Index in the dataset.
  int64_t sample = 0;
  std::string file;
  std::string reason;
  // Damaged samples found by then, this one included.
  int64_t found = 0;
};

// Thread-safe.
class DamageLog {
 public:
  // Notes a sample, `found` set by it, and returns how many are known; one that is known already changes nothing.
  int64_t Add(DamagedSample damaged);

  int64_t count() const;

  // Those noted since the last call, in order.
  std::vector<DamagedSample> Take();

 private:
  mutable Mutex mutex_;
  std::set<int64_t> known_ ABSL_GUARDED_BY(mutex_);
  std::vector<DamagedSample> fresh_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_DAMAGE_H_
