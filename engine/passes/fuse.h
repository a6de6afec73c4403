// Joins chains of elementwise operations, so that what stands between them never reaches memory.
#ifndef AMPD_ENGINE_PASSES_FUSE_H_
#define AMPD_ENGINE_PASSES_FUSE_H_

#include <functional>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Steps of one fused node, at most.
inline constexpr int kMaxFusedSteps = 24;

// Joins elementwise nodes of one shape that read each other's results into kFused nodes, where `can_fuse` says of each
// op that the backend's kernel can hold it. An input of a fused node has the node's shape, or one value for each place
// on the last axis, or one value in all. A fused node stands where its last part stood and is named after it; its
// outputs are the values that others read. Values between are not rounded to their 16-bit dtypes, except by casts: a
// 16-bit graph's results differ from the unfused ones by those roundings, an f32 graph's do not differ.
absl::StatusOr<ir::Graph> Fuse(ir::Graph graph, const std::function<bool(ir::OpKind)>& can_fuse);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_FUSE_H_
