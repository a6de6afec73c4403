// The update rules, as scalar functions every backend shares: one parameter element and its moments at a time.
#ifndef AMPD_ENGINE_OPTIM_OPTIMIZER_H_
#define AMPD_ENGINE_OPTIM_OPTIMIZER_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/core/host_device.h"

namespace ampd::optim {

enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW, kRmsProp, kAdagrad, kLamb };

// No rule keeps more per parameter element.
inline constexpr int kMaxMoments = 3;

// Constants of a job.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  float momentum = 0;   // SGD, RMSProp
  float dampening = 0;  // SGD
  bool nesterov = false;
  float weight_decay = 0;
  float beta1 = 0.9f;  // Adam, AdamW, LAMB
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  double smoothing = 0.99;  // RMSProp: torch's alpha
  bool centered = false;
  double rate_decay = 0;          // Adagrad: torch's lr_decay
  float initial_accumulator = 0;  // Adagrad
  // Unscaled gradient elements are clamped to [-clip_value, clip_value]; infinite: not at all.
  float clip_value = std::numeric_limits<float>::infinity();

  // fp32 moments kept per parameter element, in this order:
  //   SGD: the momentum buffer, where momentum is not 0. Adam, AdamW, LAMB: mean and mean square of the gradient.
  //   RMSProp: the mean square; the mean, where centered; the momentum buffer, where momentum is not 0.
  //   Adagrad: the sum of squares.
  AMPD_HOST_DEVICE int moments() const {
    switch (kind) {
      case OptimizerKind::kSgd:
        return momentum != 0 ? 1 : 0;
      case OptimizerKind::kRmsProp:
        return 1 + (centered ? 1 : 0) + (momentum != 0 ? 1 : 0);
      case OptimizerKind::kAdagrad:
        return 1;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW:
      case OptimizerKind::kLamb:
        return 2;
    }
    return 0;
  }
  // What every moment is before the first step.
  float initial_moment() const { return kind == OptimizerKind::kAdagrad ? initial_accumulator : 0; }
};

// What differs between applied steps; computed in double on the host.
struct UpdateScalars {
  // Adagrad: divided by 1 + (t - 1) * rate_decay, t = applied steps with this one.
  float learning_rate = 0;
  // Multiplies the scaled gradient: clip factor / loss scale.
  float gradient_factor = 1;
  // Adam: learning_rate / (1 - beta1^t), and 1 / sqrt(1 - beta2^t).
  float step_size = 0;
  float inverse_root_correction2 = 1;
  // LAMB: 1 / (1 - beta1^t).
  float inverse_correction1 = 1;
  // SGD: true at the first applied step, at which the momentum buffer becomes the gradient (as in PyTorch).
  bool first = false;
};

// The gradient as the rules take it: unscaled, clipped. g is finite.
AMPD_HOST_DEVICE inline float ReadyGradient(const OptimizerConfig& c, const UpdateScalars& s, float g) {
  g *= s.gradient_factor;
  g = g < -c.clip_value ? -c.clip_value : g;
  return g > c.clip_value ? c.clip_value : g;
}

// torch.optim.RMSprop (Hinton's lecture 6e; centered: Graves 2013). Where rounding makes the centered variance negative
// it counts as 0; NaN, of moments that are infinite, stays what it is.
AMPD_HOST_DEVICE inline float RmsPropElement(const OptimizerConfig& c, const UpdateScalars& s, float w, float g,
                                             float& m1, float& m2, float& m3) {
  // No correction takes back what rounding 1 - smoothing would do: the difference is taken in double.
  const float keep = static_cast<float>(c.smoothing), take = static_cast<float>(1 - c.smoothing);
  m1 = keep * m1 + take * g * g;
  float variance = m1;
  if (c.centered) {
    m2 += take * (g - m2);
    variance -= m2 * m2;
    variance = variance < 0 ? 0 : variance;
  }
  const float step = g / (std::sqrt(variance) + c.epsilon);
  if (c.momentum == 0) return w - s.learning_rate * step;
  float& buffer = c.centered ? m3 : m2;
  buffer = c.momentum * buffer + step;
  return w - s.learning_rate * buffer;
}

// Moves the first moments(); Kingma and Ba 2015, algorithm 1.
AMPD_HOST_DEVICE inline void AdamMoments(const OptimizerConfig& c, float g, float& m1, float& m2) {
  m1 += (1 - c.beta1) * (g - m1);
  m2 = c.beta2 * m2 + (1 - c.beta2) * g * g;
}

// New value of a parameter element, for every kind but kLamb; m1, m2 and m3 are its moments (read and written as far as
// moments() goes), g the scaled gradient.
// SGD: torch.optim.SGD. Adam and AdamW: Kingma and Ba 2015; Loshchilov and Hutter 2019. Adagrad: Duchi et al. 2011. All
// as torch.optim.
AMPD_HOST_DEVICE inline float UpdateElement(const OptimizerConfig& c, const UpdateScalars& s, float w, float g,
                                            float& m1, float& m2, float& m3) {
  g = ReadyGradient(c, s, g);
  if (c.kind == OptimizerKind::kAdamW) {
    w -= s.learning_rate * c.weight_decay * w;
  } else {
    g += c.weight_decay * w;
  }
  if (c.kind == OptimizerKind::kSgd) {
    if (c.momentum != 0) {
      m1 = s.first ? g : c.momentum * m1 + (1 - c.dampening) * g;
      g = c.nesterov ? g + c.momentum * m1 : m1;
    }
    return w - s.learning_rate * g;
  }
  if (c.kind == OptimizerKind::kRmsProp) return RmsPropElement(c, s, w, g, m1, m2, m3);
  if (c.kind == OptimizerKind::kAdagrad) {
    m1 += g * g;
    return w - s.learning_rate * g / (std::sqrt(m1) + c.epsilon);
  }
  AdamMoments(c, g, m1, m2);
  return w - s.step_size * m1 / (std::sqrt(m2) * s.inverse_root_correction2 + c.epsilon);
}

// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2), for
// one parameter tensor x with gradient g and Adam's moments m and v:
//   r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * x
//   x -= learning_rate * trust * r,  trust = |x| / |r| (L2 norms over the tensor), 1 where either norm is 0.
// The paper's phi is the identity. Two passes over the tensor: AdamMoments() and the norms, then the step.
AMPD_HOST_DEVICE inline float LambDirection(const OptimizerConfig& c, const UpdateScalars& s, float w, float m1,
                                            float m2) {
  const float adam = m1 * s.inverse_correction1 / (std::sqrt(m2) * s.inverse_root_correction2 + c.epsilon);
  return adam + c.weight_decay * w;
}

AMPD_HOST_DEVICE inline double LambTrustRatio(double weight_norm, double direction_norm) {
  return weight_norm > 0 && direction_norm > 0 ? weight_norm / direction_norm : 1;
}

// The exponential moving average of a parameter element after a step that made it w; `weight` is 1 - decay.
AMPD_HOST_DEVICE inline float AverageElement(float average, float w, float weight) {
  return average + weight * (w - average);
}

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_OPTIMIZER_H_
