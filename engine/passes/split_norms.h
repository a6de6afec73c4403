// Takes normalisation apart into its statistics and elementwise steps, which passes/fuse joins with what follows.
#ifndef AMPD_ENGINE_PASSES_SPLIT_NORMS_H_
#define AMPD_ENGINE_PASSES_SPLIT_NORMS_H_

#include <functional>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// batch_norm(x, scale, bias) becomes (mean, var, factor) = batch_norm_statistics(x, scale) and (x - mean) * factor +
// bias, in f32 between casts, so that an activation or a residual behind it costs no pass over memory of its own.
// Nothing is split where `can_fuse` denies one of the steps. Results have the same bits as before.
absl::StatusOr<ir::Graph> SplitNorms(ir::Graph graph, const std::function<bool(ir::OpKind)>& can_fuse);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_SPLIT_NORMS_H_
