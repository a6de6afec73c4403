// Gradients of parameters that are written once.
#ifndef AMPD_ENGINE_PASSES_OVERWRITE_GRADIENTS_H_
#define AMPD_ENGINE_PASSES_OVERWRITE_GRADIENTS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// For a graph that runs once an update: the first accumulate_grad of each parameter overwrites the gradient, so that
// nothing has to be zeroed before, and so that runtime::MakePlan can have what is in f32 made in its place. A pass
// behind it must keep the order of accumulate_grad nodes. Graphs without any stay as they are.
absl::StatusOr<ir::Graph> OverwriteGradients(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_OVERWRITE_GRADIENTS_H_
