#include "engine/optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace ampd::optim {
namespace {

double Progress(int64_t done, int64_t span) {
  const double steps = static_cast<double>(std::max<int64_t>(span, 1));
  return std::clamp(static_cast<double>(done) / steps, 0.0, 1.0);
}

double Decay(const ScheduleConfig& c, int64_t applied) {
  const int64_t done = applied - c.warmup_steps;
  switch (c.kind) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kStep: {
      const int64_t falls = applied / c.every_steps;
      return std::pow(c.gamma, static_cast<double>(falls));
    }
    case ScheduleKind::kCosine: {
      const double p = Progress(done, c.total_steps - c.warmup_steps);
      return c.min_ratio + (1 - c.min_ratio) * 0.5 * (1 + std::cos(M_PI * p));
    }
    case ScheduleKind::kLinear:
      return 1 - (1 - c.min_ratio) * Progress(done, c.total_steps - 1 - c.warmup_steps);
  }
  return 1;
}

}  // namespace

double LearningRate(const ScheduleConfig& config, int64_t applied_steps) {
  double rate = config.learning_rate * Decay(config, applied_steps);
  if (applied_steps < config.warmup_steps) {
    rate *= static_cast<double>(applied_steps + 1) / static_cast<double>(config.warmup_steps);
  }
  return rate;
}

}  // namespace ampd::optim
