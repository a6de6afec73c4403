#include "engine/optim/update_scalars.h"

#include <cmath>

namespace ampd::optim {

UpdateScalars ComputeUpdateScalars(const OptimizerConfig& config, double learning_rate, int64_t applied_steps,
                                   double clip_factor, double loss_scale) {
  // The betas are taken as rounded to fp32: the moments decay by those, so the corrections fit them exactly.
  const double t = static_cast<double>(applied_steps + 1);
  const double correction1 = 1 - std::pow(static_cast<double>(config.beta1), t);
  const double correction2 = 1 - std::pow(static_cast<double>(config.beta2), t);
  if (config.kind == OptimizerKind::kAdagrad) learning_rate /= 1 + (t - 1) * config.rate_decay;
  UpdateScalars scalars;
  scalars.learning_rate = static_cast<float>(learning_rate);
  scalars.gradient_factor = static_cast<float>(clip_factor / loss_scale);
  scalars.step_size = static_cast<float>(learning_rate / correction1);
  scalars.inverse_root_correction2 = static_cast<float>(1 / std::sqrt(correction2));
  scalars.inverse_correction1 = static_cast<float>(1 / correction1);
  scalars.first = applied_steps == 0;
  return scalars;
}

}  // namespace ampd::optim
