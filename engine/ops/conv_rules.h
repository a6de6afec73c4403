// What conv2d and conv_transpose2d share; for files in engine/ops.
#ifndef AMPD_ENGINE_OPS_CONV_RULES_H_
#define AMPD_ENGINE_OPS_CONV_RULES_H_

#include "absl/status/status.h"
#include "engine/core/shape.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {

// Output [n, p, q, k] of a convolution of the image `x` [n, h, w, c] by the filters `w` [k, r, s, c / groups], by the
// attributes strides, pads, dilations and groups.
absl::Status ConvOutput(ir::OpKind op, const OpCall& call, const Shape& x, const Shape& w, Shape* y);

// Of the convolution and of either of its gradients: every pixel of `y` meets every cell of its filters `w`.
double ConvFlops(const Shape& y, const Shape& w);

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_CONV_RULES_H_
