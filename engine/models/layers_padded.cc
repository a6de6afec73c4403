// Layers over sequences of different lengths in one batch.
#include <memory>
#include <utility>

#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/models/layers.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

using ir::OpKind;

// Whether a layer's steps depend on no other step but by ways that know the lengths. `rank`: of its input.
bool KeepsSteps(const v1::Layer& layer, int64_t rank) {
  switch (layer.kind_case()) {
    case v1::Layer::kEmbedding:
    case v1::Layer::kDropout:
    case v1::Layer::kAdd:
    case v1::Layer::kMul:
      return true;
    case v1::Layer::kDense:
    case v1::Layer::kLayerNorm:
    case v1::Layer::kRmsNorm:
    case v1::Layer::kPositionalEmbedding:
    case v1::Layer::kMultiHeadAttention:
    case v1::Layer::kLstm:
    case v1::Layer::kGru:
      return rank == 3;
    case v1::Layer::kSlice:
      return rank == 3 && (layer.slice().axis() == -1 || layer.slice().axis() == 2);
    case v1::Layer::kConcat:
      return rank == 3 && (layer.concat().axis() == -1 || layer.concat().axis() == 2);
    default:
      return IsActivation(layer);
  }
}

}  // namespace

absl::Status LayerBuilder::CheckPadded(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) const {
  for (const LayerOutput& input : inputs) {
    const Shape& shape = graph_->type(input.value).shape;
    if (!input.padded || KeepsSteps(layer, static_cast<int64_t>(shape.size()))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("reads a sequence of samples with lengths, ", ShapeString(shape),
                     ", and would mix steps that count with steps past a sample's length, node ", layer.name(),
                     " (an lstm or gru layer with output LAST_STEP before it ends the sequence)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ir::ValueId> LayerBuilder::StepMask(int64_t time) {
  if (step_mask_ >= 0) return step_mask_;
  const auto steps = std::make_shared<Tensor>(DType::kI32, Shape{1, 1, 1, time});
  for (int64_t t = 0; t < time; ++t) steps->as<int32_t>()[static_cast<size_t>(t)] = static_cast<int32_t>(t);
  const int64_t batch = graph_->type(lengths_).shape[0];
  const ir::ValueId numbers = graph_->AddConstant("lengths.steps", steps);
  const auto emit = [&](OpKind op, const char* name, std::vector<ir::ValueId> inputs, ir::Attributes attributes) {
    return ops::Emit(graph_,
                     {.op = op, .name = name, .inputs = std::move(inputs), .attributes = std::move(attributes)});
  };
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> column, emit(OpKind::kReshape, "lengths.column", {lengths_},
                                                                    {{"shape", std::vector<int64_t>{batch, 1, 1, 1}}}));
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> mask,
                        emit(OpKind::kLess, "lengths.mask", {numbers, column[0]}, {}));
  return step_mask_ = mask[0];
}

}  // namespace ampd::models
