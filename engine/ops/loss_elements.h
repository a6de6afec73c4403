// The regression losses of one element and their derivatives by the prediction, in double, as every backend computes
// them; docs/ops.md says what each means. Pure; thread-safe; callable on a GPU.
#ifndef AMPD_ENGINE_OPS_LOSS_ELEMENTS_H_
#define AMPD_ENGINE_OPS_LOSS_ELEMENTS_H_

#include <cmath>

#include "engine/core/host_device.h"

namespace ampd::ops {

// An element's prediction and target, the op's number (beta or margin), the weight of a positive target.
struct LossElement {
  double p, t, number, positive;
};

using LossFunction = double (*)(const LossElement&);

AMPD_HOST_DEVICE inline double SquaredError(const LossElement& e) { return (e.p - e.t) * (e.p - e.t); }
AMPD_HOST_DEVICE inline double SquaredErrorGrad(const LossElement& e) { return 2 * (e.p - e.t); }

AMPD_HOST_DEVICE inline double L1Loss(const LossElement& e) { return std::fabs(e.p - e.t); }
// 0 at 0; NaN stays NaN.
AMPD_HOST_DEVICE inline double L1LossGrad(const LossElement& e) {
  const double d = e.p - e.t;
  return d > 0 ? 1 : d < 0 ? -1 : d;
}

AMPD_HOST_DEVICE inline double SmoothL1Loss(const LossElement& e) {
  const double d = std::fabs(e.p - e.t);
  return d < e.number ? 0.5 * d * d / e.number : d - 0.5 * e.number;
}
AMPD_HOST_DEVICE inline double SmoothL1LossGrad(const LossElement& e) {
  const double d = e.p - e.t;
  return std::fabs(d) < e.number ? d / e.number : L1LossGrad(e);
}

// The side of the margin that the target is on.
AMPD_HOST_DEVICE inline double HingeSide(const LossElement& e) { return e.t > 0 ? 1 : -1; }
AMPD_HOST_DEVICE inline double HingeLoss(const LossElement& e) {
  const double short_of = e.number - HingeSide(e) * e.p;
  return short_of <= 0 ? 0 : short_of;
}
AMPD_HOST_DEVICE inline double HingeLossGrad(const LossElement& e) {
  return e.number - HingeSide(e) * e.p <= 0 ? 0 : -HingeSide(e);
}

// (1 - t) z + (1 + (positive - 1) t) log(1 + e^-z), with e of a number that is never positive.
AMPD_HOST_DEVICE inline double SigmoidCrossEntropy(const LossElement& e) {
  const double softplus = std::log1p(std::exp(-std::fabs(e.p))) + (e.p < 0 ? -e.p : 0.0);
  return (1 - e.t) * e.p + (1 + (e.positive - 1) * e.t) * softplus;
}
AMPD_HOST_DEVICE inline double SigmoidCrossEntropyGrad(const LossElement& e) {
  const double z = std::exp(-std::fabs(e.p));
  const double negative = (e.p >= 0 ? z : 1.0) / (1 + z);  // 1 - sigmoid(p)
  return (1 - e.t) - (1 + (e.positive - 1) * e.t) * negative;
}

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_LOSS_ELEMENTS_H_
