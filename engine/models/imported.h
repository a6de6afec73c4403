// A job's forward graph from a network in ONNX form. Used by model.cc.
#ifndef AMPD_ENGINE_MODELS_IMPORTED_H_
#define AMPD_ENGINE_MODELS_IMPORTED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/model.pb.h"
#include "ampd/v1/precision.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"
#include "engine/models/model.h"

namespace ampd::models {

struct ImportedForward {
  // Network and loss in f32; inputs and outputs as of PhaseGraph. Parameters and states are those that the prediction
  // depends on, named as in the file (engine/models/onnx/import.h).
  ir::Graph graph;
  // Layers (nodes of the file) of which something is left, in the file's order, each with its ONNX operation.
  std::vector<std::pair<std::string, std::string>> layers;
};

// `model` has onnx, whose file was provided (imported_files.h). The first of `outputs` is the prediction, an image of
// it turned to [batch, height, width, channels]; a softmax at its end, over classes of which the loss takes a softmax
// itself, is left out, and so is a sigmoid before sigmoid_cross_entropy. `kept`: names of the only parameters and
// states that the graph has; null: all that it reads. A training graph's first values are kept (imported_files.h), none
// where `weights` is false. INVALID_ARGUMENT with a violation of the field that does not fit.
absl::StatusOr<ImportedForward> BuildImportedForward(const v1::ModelSpec& model, const SampleInfo& sample,
                                                     int64_t batch, bool training,
                                                     const std::set<std::string>* kept = nullptr);

// The same network in evaluation as its file has it: input and output of the file's names, of the file's types, an
// image's in the order that the engine has it; with the softmax or sigmoid at the end that a loss would take away.
// `sample` may be without labels.
absl::StatusOr<ir::Graph> BuildImportedInference(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch);

// By parameter of `graph`, whether `freeze` leaves it to training. INVALID_ARGUMENT where a glob matches neither a
// parameter nor a state.
absl::StatusOr<std::vector<bool>> NotFrozen(const v1::OnnxModel& onnx, const ir::Graph& graph);

// Rules are matched here, where layers are known. INVALID_ARGUMENT with a violation of "precision.rules[i].match".
absl::Status CheckRules(const v1::PrecisionSpec& precision, const ImportedForward& forward);

// Of a training graph; numbers that several layers read count for the first.
std::vector<v1::LayerPlan> DescribeImported(const ImportedForward& forward, const ir::Graph& train);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_IMPORTED_H_
