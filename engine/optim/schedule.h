// The learning rate as a function of the count of applied steps; a skipped step does not move it.
#ifndef AMPD_ENGINE_OPTIM_SCHEDULE_H_
#define AMPD_ENGINE_OPTIM_SCHEDULE_H_

#include <cstdint>

namespace ampd::optim {

enum class ScheduleKind : uint8_t { kConstant, kStep, kCosine, kLinear };

// In what follows n counts the applied steps before this one and p is the progress after the warm-up, cut to [0, 1].
struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  // The full rate, >= 0.
  double learning_rate = 0.001;
  // While n < warmup_steps the rate is multiplied by (n + 1) / warmup_steps, whatever the kind.
  int64_t warmup_steps = 0;
  // kStep: rate * gamma^floor(n / every_steps); >= 1 and in (0, 1].
  int64_t every_steps = 1;
  double gamma = 0.1;
  // kCosine: p = (n - warmup) / (total - warmup); rate * (m + (1 - m) (1 + cos(pi p)) / 2), as torch's
  // CosineAnnealingLR with T_max = total - warmup. kLinear: p = (n - warmup) / (total - 1 - warmup), so that the last
  // planned step has rate * m; rate * (1 - (1 - m) p). m in [0, 1].
  double min_ratio = 0;
  // Steps planned for the job, >= 1.
  int64_t total_steps = 1;
};

// The rate of the step that follows `applied_steps` applied ones. Pure.
double LearningRate(const ScheduleConfig& config, int64_t applied_steps);

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_SCHEDULE_H_
