// Where the samples of a batch lie in a graph, and whether they stay apart: a file that was written down for one batch
// size may not say what it means for another. Used by imported.cc.
#ifndef AMPD_ENGINE_MODELS_SAMPLE_AXIS_H_
#define AMPD_ENGINE_MODELS_SAMPLE_AXIS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// A batch size whose multiples are no other extents: a prime.
inline constexpr int64_t kTellingBatch = 7919;

// `telling` is the same network as `graph`, imported for batches of kTellingBatch; `graph` is for `batch`. Both have
// one input. INVALID_ARGUMENT, naming the node, where the two differ in more than the batch, or where a value that
// depends on the input has not exactly one axis along which samples lie, or a node joins what lies along it.
// Conservative: what cannot be told is refused.
absl::Status CheckSamplesStayApart(const ir::Graph& telling, const ir::Graph& graph, int64_t batch);

inline constexpr int64_t kNoSampleAxis = -1;

// By value of `graph`, the axis along which the samples of its batch lie, each of them extent / batch neighbours;
// kNoSampleAxis where the value does not depend on the input, its samples were joined, or it cannot be told. `other` is
// the same network as `graph`, imported for batches of `other_batch`. Each graph has one input; neither batch is 1.
std::vector<int64_t> FindSampleAxes(const ir::Graph& graph, int64_t batch, const ir::Graph& other, int64_t other_batch);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_SAMPLE_AXIS_H_
