// Takes the weight casts out of the step.
#ifndef AMPD_ENGINE_PASSES_PUBLISH_PARAMETERS_H_
#define AMPD_ENGINE_PASSES_PUBLISH_PARAMETERS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Every cast of a parameter becomes a published copy: a value of kind kPublished that the optimizer's publish stage
// writes once per applied step. So does what pads a parameter or such a copy with zeros behind its numbers
// (passes/pad_for_tensor_cores): a copy whose extents are larger than the parameter's. Runs after differentiation.
absl::StatusOr<ir::Graph> PublishParameters(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_PUBLISH_PARAMETERS_H_
