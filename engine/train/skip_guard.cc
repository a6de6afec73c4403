#include "engine/train/skip_guard.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

absl::Status Diverged(absl::string_view what) {
  return WithFailureClass(absl::AbortedError(absl::StrCat("training diverged: ", what)), v1::Failure::DIVERGED);
}

absl::Status CheckRatio(const SkipLimits& limits, int64_t step, SkipHistory* history) {
  auto& recent = history->recent;
  recent.erase(recent.begin(), std::upper_bound(recent.begin(), recent.end(), step - limits.window));
  const int64_t window = std::max<int64_t>(std::min(limits.window, limits.total_steps) / limits.every, 1);
  const int64_t skips = static_cast<int64_t>(recent.size());
  if (static_cast<double>(skips) <= limits.max_ratio * static_cast<double>(window)) return absl::OkStatus();
  return WithFailureClass(
      absl::AbortedError(absl::StrCat(skips, " of ", window, " steps were skipped, more than limits.max_skip_ratio ",
                                      limits.max_ratio, " allows (step ", step, ")")),
      v1::Failure::LIMIT);
}

}  // namespace

absl::Status CountStep(const SkipLimits& limits, int64_t step, bool applied, bool calibration, bool scale_moved,
                       SkipHistory* history) {
  if (applied) {
    history->consecutive = 0;
    return absl::OkStatus();
  }
  if (calibration) {
    if (scale_moved) {
      history->consecutive = 0;
    } else if (++history->consecutive > std::max(kMaxConsecutiveSkips, limits.hysteresis)) {
      return Diverged(absl::StrCat(history->consecutive, " steps in a row were skipped without a first applied step, ",
                                   "and none of them lowered the loss scale (step ", step, ")"));
    }
    return absl::OkStatus();
  }
  if (++history->consecutive >= kMaxConsecutiveSkips) {
    return Diverged(absl::StrCat(history->consecutive, " steps in a row were skipped (step ", step, ")"));
  }
  if (limits.max_ratio == 0) return absl::OkStatus();
  history->recent.push_back(step);
  return CheckRatio(limits, step, history);
}

absl::Status CheckApplied(const SkipLimits& limits, int64_t applied, int64_t skipped, bool inherits,
                          const SkipHistory& history) {
  const int64_t last = history.consecutive, steps = applied + skipped;
  const bool calibrated = applied > 0 || inherits;
  if (calibrated && last >= kMaxSkipsToTheEnd && 2 * last >= steps) {
    return Diverged(absl::StrCat("the last ", last, " of ", steps,
                                 " steps were skipped: the loss or a gradient of each was not finite"));
  }
  if (calibrated || skipped == 0 || last < limits.hysteresis) return absl::OkStatus();
  return Diverged(
      absl::StrCat("none of ", skipped, " steps was applied: the loss or a gradient of each was not finite"));
}

}  // namespace ampd::train
