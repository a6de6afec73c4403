// The forward graph of a trained model, for other programs to run.
#ifndef AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_
#define AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/model.h"

namespace ampd::models {

// Of a job without networks: its model in f32, in evaluation, without a loss, on `batch` samples. Of `sample` the
// shape of inputs counts, and whether they have lengths. Of a job with model.onnx the file has been provided
// (engine/models/imported_files.h).
//
// Inputs: "x" f32 [batch, ...], images channels last; with lengths "lengths" i32 [batch]. Output "output": the last
// layer's or the file's prediction, images channels last where model.onnx.channels_first does not say otherwise, a
// flattened image in PyTorch's order. Parameters and states are those of
// Model::eval.
//
// FAILED_PRECONDITION for a job with networks, or without layers. INVALID_ARGUMENT with a violation of
// "model.layers[i]".
absl::StatusOr<ir::Graph> BuildExportForward(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_
