// Layers over sequences of different lengths in one batch.
#include <limits>
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
    case v1::Layer::kConv2D:
    case v1::Layer::kLayerNorm:
    case v1::Layer::kRmsNorm:
    case v1::Layer::kLstm:
    case v1::Layer::kGru:
      return rank == 3 || rank == 4;
    case v1::Layer::kMaxPool:
    case v1::Layer::kAvgPool:
      return rank == 4;
    case v1::Layer::kDense:
    case v1::Layer::kPositionalEmbedding:
    case v1::Layer::kMultiHeadAttention:
      return rank == 3;
    case v1::Layer::kSlice:
      return rank == 3 && (layer.slice().axis() == -1 || layer.slice().axis() == 2);
    case v1::Layer::kConcat:
      return rank == 3 && (layer.concat().axis() == -1 || layer.concat().axis() == 2);
    default:
      return IsActivation(layer);
  }
}

std::shared_ptr<Tensor> Scalar(int64_t value) {
  auto tensor = std::make_shared<Tensor>(DType::kI32, Shape{});
  tensor->as<int32_t>()[0] = static_cast<int32_t>(value);
  return tensor;
}

}  // namespace

absl::Status LayerBuilder::CheckPadded(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) const {
  ir::ValueId lengths = -1;
  for (const LayerOutput& input : inputs) {
    if (!input.padded()) continue;
    const Shape& shape = graph_->type(input.value).shape;
    if (!KeepsSteps(layer, static_cast<int64_t>(shape.size()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("reads a sequence of samples with lengths, ", ShapeString(shape),
                       ", and would mix steps that count with steps past a sample's length, node ", layer.name(),
                       " (an lstm or gru layer with output LAST_STEP before it ends the sequence)"));
    }
    // Attention's two sequences are two things.
    if (lengths >= 0 && input.lengths != lengths && !layer.has_multi_head_attention()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reads sequences that layers before it shortened differently, node ", layer.name()));
    }
    lengths = input.lengths;
  }
  return absl::OkStatus();
}

absl::StatusOr<ir::ValueId> LayerBuilder::EmitOnLengths(OpKind op, const std::string& name,
                                                        std::vector<ir::ValueId> inputs, ir::Attributes attributes) {
  AMPD_ASSIGN_OR_RETURN(
      const std::vector<ir::ValueId> outputs,
      ops::Emit(graph_, {.op = op, .name = name, .inputs = std::move(inputs), .attributes = std::move(attributes)}));
  return outputs[0];
}

absl::StatusOr<ir::ValueId> LayerBuilder::StepMask(ir::ValueId lengths, int64_t time, size_t axis) {
  const auto [known, first] = step_masks_.try_emplace({lengths, axis}, -1);
  if (!first) return known->second;
  const std::string suffix = step_masks_.size() == 1 ? "" : absl::StrCat("_", step_masks_.size());
  Shape shape(4, 1);
  shape[axis] = time;
  const auto steps = std::make_shared<Tensor>(DType::kI32, shape);
  for (int64_t t = 0; t < time; ++t) steps->as<int32_t>()[static_cast<size_t>(t)] = static_cast<int32_t>(t);
  const int64_t batch = graph_->type(lengths).shape[0];
  const ir::ValueId numbers = graph_->AddConstant("lengths.steps" + suffix, steps);
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId column, EmitOnLengths(OpKind::kReshape, "lengths.column" + suffix, {lengths},
                                                                {{"shape", std::vector<int64_t>{batch, 1, 1, 1}}}));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId mask,
                        EmitOnLengths(OpKind::kLess, "lengths.mask" + suffix, {numbers, column}));
  return step_masks_[{lengths, axis}] = mask;
}

absl::StatusOr<ir::ValueId> LayerBuilder::Shortened(ir::ValueId lengths, int64_t more, int64_t stride) {
  if (lengths < 0 || (more == 0 && stride == 1)) return lengths;
  const auto [known, first] = shortened_.try_emplace({lengths, more, stride}, -1);
  if (!first) return known->second;
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() / 2;
  if (more > kLargest || more < -kLargest || stride > kLargest) {
    return absl::InvalidArgumentError(absl::StrCat("windows over time of stride ", stride, " are too far apart"));
  }
  const std::string name = absl::StrCat("lengths.shortened_", shortened_.size());
  ir::ValueId y = lengths;
  if (more != 0) {
    const ir::ValueId addend = graph_->AddConstant(name + ".more", Scalar(more));
    AMPD_ASSIGN_OR_RETURN(y, EmitOnLengths(OpKind::kAdd, name + ".add", {y, addend}));
  }
  if (more < 0) {
    const ir::ValueId zero = graph_->AddConstant(name + ".zero", Scalar(0));
    AMPD_ASSIGN_OR_RETURN(y, EmitOnLengths(OpKind::kMax, name + ".max", {y, zero}));
  }
  if (stride != 1) {
    const ir::ValueId divisor = graph_->AddConstant(name + ".stride", Scalar(stride));
    AMPD_ASSIGN_OR_RETURN(y, EmitOnLengths(OpKind::kDiv, name + ".div", {y, divisor}));
  }
  return shortened_[{lengths, more, stride}] = y;
}

absl::StatusOr<ir::ValueId> LayerBuilder::ZeroedPastLengths(const std::string& layer, const LayerOutput& x) {
  if (!x.padded()) return x.value;
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId mask, StepMask(x.lengths, graph_->type(x.value).shape[1], 1));
  const ir::ValueId zero = graph_->AddConstant(layer + ".zero", std::make_shared<Tensor>(DType::kF32, Shape{}));
  return Emit(OpKind::kWhere, layer, {mask, x.value, zero}, {});
}

absl::StatusOr<LayerOutput> LayerBuilder::AsImage(const std::string& layer, const LayerOutput& x) {
  const Shape shape = graph_->type(x.value).shape;
  if (shape.size() != 3) return x;
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y,
                        Reshape(layer, x.value, {shape[0], shape[1], shape[2], 1}, ".one_channel"));
  return LayerOutput{y, {}, x.lengths};
}

}  // namespace ampd::models
