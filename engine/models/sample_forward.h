// The forward graph of report.samples.
#ifndef AMPD_ENGINE_MODELS_SAMPLE_FORWARD_H_
#define AMPD_ENGINE_MODELS_SAMPLE_FORWARD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/build_layers.h"
#include "engine/models/model.h"

namespace ampd::models {

// Of report.samples.images: the network in f32, in evaluation, on rows * columns samples, in the rows' order. What it
// reads is what its first call that reads nothing but sources does: noise of a stream of its own, which in runs of one
// seed and step is the same, and as labels the row. No inputs; output "samples", f32 [samples, height, width, 1 or 3].
//
// Of report.samples.text: the job's layers in f32, in evaluation, on one sequence. Input "x" f32 [1, time], output
// "logits" f32 [1, time, classes], at least SampleInfo::classes of them.
//
// An empty graph without report.samples. INVALID_ARGUMENT with a violation of "report.samples...." or
// "model.networks[i].layers[j]".
absl::StatusOr<ir::Graph> BuildSampleForward(const v1::JobSpec& spec, const SampleInfo& sample, ElementBudget* budget);

// The first phase that calls the network of report.samples.images; 0 where there is none.
int SampledPhase(const v1::JobSpec& spec);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_SAMPLE_FORWARD_H_
