// The shape rule that the windowed pools share; for files in engine/ops.
#ifndef AMPD_ENGINE_OPS_POOL_RULES_H_
#define AMPD_ENGINE_OPS_POOL_RULES_H_

#include "absl/status/status.h"
#include "engine/core/shape.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {

// Output [n, p, q, c] of a pool over the image `x` by the attributes size, strides, pads and dilations. Pads are
// smaller than the window's span.
absl::Status PoolOutput(ir::OpKind op, const OpCall& call, const Shape& x, Shape* y);

// Cells of one window.
double WindowCells(const OpCall& call);

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_POOL_RULES_H_
