// How a layer's weights are drawn.
#ifndef AMPD_ENGINE_MODELS_WEIGHT_INIT_H_
#define AMPD_ENGINE_MODELS_WEIGHT_INIT_H_

#include "ampd/v1/model.pb.h"
#include "engine/core/shape.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// What `init` says of a weight of `shape`, which as in memory begins with the outputs and ends with the inputs, [out,
// in] or [out, kernel_h, kernel_w, in]; `fallback` where it says nothing. He et al. 2015, eq. 10 and 14: a standard
// deviation of sqrt(2 / fan), the fan counted as PyTorch counts it, inputs or outputs times the kernel's cells.
ir::Initializer WeightInitializer(const v1::WeightInit& init, const Shape& shape, ir::Initializer fallback);

// Of the bias beside a weight drawn by `init`: zeros, `fallback` where it says nothing.
ir::Initializer BiasInitializer(const v1::WeightInit& init, ir::Initializer fallback);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_WEIGHT_INIT_H_
