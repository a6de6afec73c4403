// The learning rate as a function of the count of applied steps; a skipped step does not move it.
#ifndef AMPD_ENGINE_OPTIM_SCHEDULE_H_
#define AMPD_ENGINE_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace ampd::optim {

enum class ScheduleKind : uint8_t {
  kConstant,
  kStep,
  kCosine,
  kLinear,
  kMultiStep,
  kCosineRestarts,
  kPolynomial,
  kOneCycle,
  kInverseSquareRoot,
};

// In what follows n counts the applied steps before this one and p is the progress after the warm-up, cut to [0, 1].
struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  // The full rate, >= 0.
  double learning_rate = 0.001;
  // While n < warmup_steps the rate is multiplied by (n + 1) / warmup_steps, whatever the kind but kOneCycle.
  int64_t warmup_steps = 0;
  // kStep: rate * gamma^floor(n / every_steps); >= 1 and in (0, 1].
  int64_t every_steps = 1;
  // kMultiStep: rate * gamma^(milestones that are <= n), as torch's MultiStepLR; increasing, >= 1.
  std::vector<int64_t> milestones;
  double gamma = 0.1;
  // kCosine: p = (n - warmup) / (total - warmup); rate * (m + (1 - m) (1 + cos(pi p)) / 2), as torch's
  // CosineAnnealingLR with T_max = total - warmup. kLinear: p = (n - warmup) / (total - 1 - warmup), so that the last
  // planned step has rate * m; rate * (1 - (1 - m) p). m in [0, 1].
  double min_ratio = 0;
  // kPolynomial: p as kCosine's; rate * (m + (1 - m) (1 - p)^power), as torch's PolynomialLR with total_iters = total -
  // warmup where m is 0. > 0.
  double power = 1;
  // kCosineRestarts: kCosine's curve, begun anew after `period` steps and each time after `period_factor` times as many
  // as the last, as torch's CosineAnnealingWarmRestarts(T_0, T_mult); counted from the end of the warm-up. Both >= 1.
  int64_t period = 1;
  int64_t period_factor = 1;
  // kOneCycle: from rate / start_divisor up to the rate within rising_share of the planned steps, then down to rate /
  // (start_divisor * end_divisor) at the last one; three_phase: down to the start in as many steps as it took to rise,
  // then on. The pieces are half cosines, or straight lines where `straight`. As torch's OneCycleLR(max_lr = rate,
  // div_factor, final_div_factor, pct_start, cycle_momentum = False). rising_share in [0, 1], in three phases <= 0.5.
  double rising_share = 0.3;
  double start_divisor = 25;
  double end_divisor = 1e4;
  bool three_phase = false;
  bool straight = false;
  // kInverseSquareRoot: rate * sqrt(warmup / max(n + 1, warmup)), warmup >= 1 (Vaswani et al. 2017, section 5.3, where
  // the rate reached at the end of the warm-up is (d_model * warmup)^-0.5).
  // Steps planned for the job, >= 1.
  int64_t total_steps = 1;
};

// The rate of the step that follows `applied_steps` applied ones. Pure; allocates nothing.
double LearningRate(const ScheduleConfig& config, int64_t applied_steps);

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_SCHEDULE_H_
