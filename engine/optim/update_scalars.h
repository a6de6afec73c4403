// The numbers of one applied step, computed in double on the host.
#ifndef AMPD_ENGINE_OPTIM_UPDATE_SCALARS_H_
#define AMPD_ENGINE_OPTIM_UPDATE_SCALARS_H_

#include <cstdint>

#include "engine/core/host_device.h"
#include "engine/optim/optimizer.h"

namespace ampd::optim {

// What gradients are multiplied by so that their joint L2 norm is at most `max_norm`: min(1, max_norm / (norm + 1e-6)),
// as torch.nn.utils.clip_grad_norm_. `norm` is that of the unscaled gradients, finite; max_norm > 0.
AMPD_HOST_DEVICE inline double ClipFactor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

// The scalars of the step that follows `applied_steps` applied ones. The gradients are multiplied by
// clip_factor / loss_scale.
UpdateScalars ComputeUpdateScalars(const OptimizerConfig& config, double learning_rate, int64_t applied_steps,
                                   double clip_factor, double loss_scale);

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_UPDATE_SCALARS_H_
