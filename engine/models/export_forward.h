// The forward graph of a trained model, for other programs to run.
#ifndef AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_
#define AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/model.h"

namespace ampd::models {

// The model in f32, in evaluation, without a loss, on `batch` samples. Of `sample` the shapes of inputs, labels and
// targets count, and whether there are lengths. Of a job with model.onnx the file has been provided
// (engine/models/imported_files.h).
//
// Of a job without networks, for which `network` is empty: inputs "x" f32 [batch, ...], images channels last; with
// lengths "lengths" i32 [batch]. Output "output": the last layer's, images channels last, a flattened image in
// PyTorch's order. Of model.onnx input and output are the file's (BuildImportedInference), images channels last where
// channels_first does not say otherwise. Parameters and states are those of Model::eval.
//
// Of a job with networks: `network` and what it reads of other networks, as a phase calls it. "PHASE.CALL" is that
// call; of a network's name, of its calls by phase and in the phase's order, the first that depends on the data and on
// no noise, or else the first. Of a job with one network alone it may be empty. Inputs are the sources that it depends
// on, in the order in which they are read: "x" as above; "labels" i32 [batch, ...]; "targets" f32 [batch, features]; of
// model.noise "noise.<name>" f32 [batch, ...]. Output "output" as above, of the network. Parameters and states are
// those of the networks that take part.
//
// FAILED_PRECONDITION for a job with networks where none is named, for one without layers, and for targets of which
// `sample` does not say how many a sample has. INVALID_ARGUMENT for a network or call that there is not, and with a
// violation of "model.layers[i]", "model.networks[i].layers[j]" or "phases[i]....".
absl::StatusOr<ir::Graph> BuildExportForward(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch,
                                             const std::string& network = "");

// Of a job with networks: the call that `network` stands for in BuildExportForward, "PHASE.CALL". Errors are its.
absl::StatusOr<std::string> ExportedCall(const v1::JobSpec& spec, const std::string& network);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_EXPORT_FORWARD_H_
