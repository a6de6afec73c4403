// The update rules, as scalar functions every backend shares: one parameter element and its moments at a time.
#ifndef AMPD_ENGINE_OPTIM_OPTIMIZER_H_
#define AMPD_ENGINE_OPTIM_OPTIMIZER_H_

#include <cmath>
#include <cstdint>

namespace ampd::optim {

enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW };

// Constants of a job.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  float momentum = 0;  // SGD
  bool nesterov = false;
  float weight_decay = 0;
  float beta1 = 0.9f;  // Adam, AdamW
  float beta2 = 0.999f;
  float epsilon = 1e-8f;

  // fp32 moments kept per parameter element: 0, 1 or 2.
  int moments() const { return kind == OptimizerKind::kSgd ? (momentum != 0 ? 1 : 0) : 2; }
};

// What differs between applied steps; computed in double on the host.
struct UpdateScalars {
  float learning_rate = 0;
  // Multiplies the scaled gradient: clip factor / loss scale.
  float gradient_factor = 1;
  // Adam: learning_rate / (1 - beta1^t), and 1 / sqrt(1 - beta2^t), t = applied steps with this one.
  float step_size = 0;
  float inverse_root_correction2 = 1;
  // SGD: true at the first applied step, at which the momentum buffer becomes the gradient (as in PyTorch).
  bool first = false;
};

// New value of a parameter element; m1 and m2 are its moments (read and written if moments() says so), g the scaled
// gradient.
// SGD: torch.optim.SGD (dampening 0). Adam and AdamW: Kingma and Ba 2015; Loshchilov and Hutter 2019; as torch.optim.
inline float UpdateElement(const OptimizerConfig& c, const UpdateScalars& s, float w, float g, float& m1, float& m2) {
  g *= s.gradient_factor;
  if (c.kind == OptimizerKind::kSgd) {
    g += c.weight_decay * w;
    if (c.momentum != 0) {
      m1 = s.first ? g : c.momentum * m1 + g;
      g = c.nesterov ? g + c.momentum * m1 : m1;
    }
    return w - s.learning_rate * g;
  }
  if (c.kind == OptimizerKind::kAdamW) {
    w -= s.learning_rate * c.weight_decay * w;
  } else {
    g += c.weight_decay * w;
  }
  m1 += (1 - c.beta1) * (g - m1);
  m2 = c.beta2 * m2 + (1 - c.beta2) * g * g;
  return w - s.step_size * m1 / (std::sqrt(m2) * s.inverse_root_correction2 + c.epsilon);
}

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_OPTIMIZER_H_
