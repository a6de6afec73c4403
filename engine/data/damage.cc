#include "engine/data/damage.h"

#include <utility>

namespace ampd::data {

int64_t DamageLog::Add(DamagedSample damaged) {
  const MutexLock lock(&mutex_);
  if (!known_.insert(damaged.sample).second) return static_cast<int64_t>(known_.size());
  damaged.found = static_cast<int64_t>(known_.size());
  fresh_.push_back(std::move(damaged));
  return fresh_.back().found;
}

int64_t DamageLog::count() const {
  const MutexLock lock(&mutex_);
  return static_cast<int64_t>(known_.size());
}

std::vector<DamagedSample> DamageLog::Take() {
  const MutexLock lock(&mutex_);
  return std::exchange(fresh_, {});
}

}  // namespace ampd::data
