#include "engine/optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace ampd::optim {
namespace {

double Progress(int64_t done, int64_t span) {
  const double steps = static_cast<double>(std::max<int64_t>(span, 1));
  return std::clamp(static_cast<double>(done) / steps, 0.0, 1.0);
}

double HalfCosine(double p) { return 0.5 * (1 + std::cos(M_PI * p)); }

// From 1 to min_ratio as `share` goes from 1 to 0.
double AboveMinimum(const ScheduleConfig& c, double share) { return c.min_ratio + (1 - c.min_ratio) * share; }

double CosineRestarts(const ScheduleConfig& c, int64_t done) {
  int64_t since = std::max<int64_t>(done, 0), period = c.period;
  if (c.period_factor == 1) {
    since %= period;
  } else {
    // A period grows no further once it is longer than what is left, so that no product overflows.
    while (since >= period) {
      since -= period;
      period *= c.period_factor;
    }
  }
  return AboveMinimum(c, HalfCosine(Progress(since, period)));
}

// torch's OneCycleLR counts the ends of its pieces in fractions of steps; so the pieces are taken as it takes them.
double OneCycle(const ScheduleConfig& c, int64_t applied) {
  const double total = static_cast<double>(c.total_steps), n = std::min(static_cast<double>(applied), total - 1);
  const double low = 1 / c.start_divisor, end = low / c.end_divisor;
  const double rise_end = c.rising_share * total - 1;
  const auto piece = [&](double first, double last, double from, double to) {
    const double p = last > first ? (n - first) / (last - first) : 1;
    return c.straight ? from + (to - from) * p : to + (from - to) * HalfCosine(p);
  };
  if (n <= rise_end) return piece(0, rise_end, low, 1);
  if (!c.three_phase) return piece(rise_end, total - 1, 1, end);
  const double fall_end = 2 * c.rising_share * total - 2;
  return n <= fall_end ? piece(rise_end, fall_end, 1, low) : piece(fall_end, total - 1, low, end);
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
    case ScheduleKind::kMultiStep: {
      const auto passed = std::upper_bound(c.milestones.begin(), c.milestones.end(), applied);
      return std::pow(c.gamma, static_cast<double>(passed - c.milestones.begin()));
    }
    case ScheduleKind::kCosine:
      return AboveMinimum(c, HalfCosine(Progress(done, c.total_steps - c.warmup_steps)));
    case ScheduleKind::kCosineRestarts:
      return CosineRestarts(c, done);
    case ScheduleKind::kPolynomial:
      return AboveMinimum(c, std::pow(1 - Progress(done, c.total_steps - c.warmup_steps), c.power));
    case ScheduleKind::kOneCycle:
      return OneCycle(c, applied);
    case ScheduleKind::kInverseSquareRoot: {
      const double warmup = static_cast<double>(c.warmup_steps);
      return std::sqrt(warmup / std::max(static_cast<double>(applied + 1), warmup));
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
