// What an imported graph goes through before it is trained. Used by imported.cc.
#ifndef AMPD_ENGINE_MODELS_IMPORTED_GRAPH_H_
#define AMPD_ENGINE_MODELS_IMPORTED_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ampd/v1/model.pb.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// Drops nodes on which output `output` does not depend, and effects of what was dropped. Parameters, states and
// constants that nothing reads any more lose their values in the graph, though not their slots.
void KeepWhatReaches(const std::string& output, ir::Graph* graph);

// Takes away what the loss does by itself: a softmax or its logarithm over the classes before softmax_cross_entropy or
// ctc, a sigmoid before sigmoid_cross_entropy. Only operations that move elements may stand behind it. Classes are the
// last axis of `output`. Run KeepWhatReaches before and after. INVALID_ARGUMENT where the softmax is over another axis.
absl::Status StripLossActivation(const v1::LossSpec& loss, const std::string& output, ir::Graph* graph);

// Has each dropout draw its mask by the sample, whose draws depend on nothing but its place in the whole batch: so that
// micro-batches and replicas neither repeat masks nor change them. A dropout takes the first axis as the samples';
// where they lie otherwise, by `axes` (of FindSampleAxes, for batches of `batch`), its input is turned, and its result
// back. What has no sample axis is drawn as one, by the micro-batch's first sample.
absl::Status DrawBySample(const std::vector<int64_t>& axes, int64_t batch, ir::Graph* graph);

// Has every parameter drawn anew (unless a first value is kept for it, imported_files.h), by what reads it: weights of
// products, convolutions and recurrences, and tables, uniform in +-1/sqrt(fan in); scales 1; biases, slopes of PRelu,
// and whatever else there is, 0. Running means start at 0, variances at 1.
void DrawAnew(ir::Graph* graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_IMPORTED_GRAPH_H_
