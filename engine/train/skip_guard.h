// When too many skipped steps end a training.
#ifndef AMPD_ENGINE_TRAIN_SKIP_GUARD_H_
#define AMPD_ENGINE_TRAIN_SKIP_GUARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ampd::train {

// Skips in a row that count as divergence.
inline constexpr int64_t kMaxConsecutiveSkips = 100;

struct SkipLimits {
  // Share of skipped steps in the window above which the job fails; 0: no limit.
  double max_ratio = 0;
  // Attempted steps, >= 1.
  int64_t window = 500;
  // Of the job, without those it inherits: a window longer than the job is cut to it.
  int64_t total_steps = 1;
  // The phase attempts one step of so many, >= 1.
  int64_t every = 1;
  // Overflows the loss scaler skips before it moves (optim::LossScaleConfig).
  int64_t hysteresis = 1;
};

// What the guard remembers; saved in checkpoints.
struct SkipHistory {
  // Skips since the last applied step. In calibration: since the scale last moved.
  int64_t consecutive = 0;
  // Attempted steps, from 1, skipped outside calibration within the window, oldest first. Kept only under a limit.
  std::vector<int64_t> recent;

  bool operator==(const SkipHistory&) const = default;
};

// Counts attempted step `step`, from 1, and says whether the training goes on. The errors carry their failure class:
//  - DIVERGED: kMaxConsecutiveSkips skips in a row after the first applied step.
//  - DIVERGED: in calibration, more skips in a row that did not move the scale than that (or than `hysteresis`, if it
//  is
//    more); those that lower it are no sign of divergence, and end at the scale's minimum.
//  - LIMIT: more than max_ratio * min(window, total_steps) / every skips among the last `window` steps, calibration
//  left
//    out.
absl::Status CountStep(const SkipLimits& limits, int64_t step, bool applied, bool calibration, bool scale_moved,
                       SkipHistory* history);

// A training that ends with so many skips in a row diverged if they are half of its steps, or more.
inline constexpr int64_t kMaxSkipsToTheEnd = 10;

// At the end of the training, of which this job `applied` and `skipped` so many steps: DIVERGED where none was applied,
// though more of the last of those that were skipped, of which `history` tells, than `limits.hysteresis` allows did not
// lower the loss scale; or where it ends with kMaxSkipsToTheEnd skips or more, which are half of the steps. `inherits`:
// steps were applied before this job's first, so that nothing was calibrated: the second alone is asked then.
absl::Status CheckApplied(const SkipLimits& limits, int64_t applied, int64_t skipped, bool inherits,
                          const SkipHistory& history);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SKIP_GUARD_H_
