#include "engine/models/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/models/weight_init.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

// [height, width] of a field in which one number means a square and none means `fallback`.
Ints Pair(const google::protobuf::RepeatedField<int64_t>& field, const Ints& fallback) {
  if (field.empty()) return fallback;
  return field.size() == 1 ? Ints{field[0], field[0]} : Ints{field[0], field[1]};
}

// [top, left, bottom, right]: `given`, if any, else by `padding`. SAME keeps ceil(input / stride) outputs, an odd
// remainder going to bottom and right. `span`: the pixels that a kernel covers, holes included. Of `padded` sequences
// the place of the first window must not depend on the bucket: it is that of an extent which the stride divides.
Ints Pads(const google::protobuf::RepeatedField<int64_t>& given, v1::Padding::Kind padding, const Shape& x,
          const Ints& span, const Ints& strides, bool padded) {
  if (given.size() == 4) return {given.begin(), given.end()};
  if (padding != v1::Padding::SAME) return {0, 0, 0, 0};
  const auto total = [&](int axis) {
    const int64_t outputs = (x[1 + axis] + strides[axis] - 1) / strides[axis];
    return std::max<int64_t>((outputs - 1) * strides[axis] + span[axis] - x[1 + axis], 0);
  };
  const int64_t h = total(0), w = total(1);
  const int64_t top = padded ? std::max<int64_t>(span[0] - strides[0], 0) / 2 : h / 2;
  return {top, w / 2, std::max<int64_t>(h - top, 0), w - w / 2};
}

// Shortened()'s addend for windows that are placed so.
int64_t MoreSteps(bool same, const Ints& pads, int64_t span, int64_t stride) {
  return same ? stride - 1 : pads[0] + pads[2] - span + stride;
}

ir::Initializer Uniform(double bound) { return {ir::Initializer::Kind::kUniform, bound}; }

// A vector over the channels of `x`, in the order that PyTorch's flatten gives them.
ir::Persistent ChannelVector(std::string name, int64_t channels, const LayerOutput& x, ir::Initializer::Kind init) {
  ir::Persistent p{.name = std::move(name), .type = {DType::kF32, {channels}}, .init = {init, 0}};
  if (!x.flattened.empty()) p.layout = ir::DiskLayout::kChannelsLast, p.flattened = x.flattened;
  return p;
}

}  // namespace

absl::StatusOr<LayerOutput> LayerBuilder::Add(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) {
  AMPD_RETURN_IF_ERROR(CheckPadded(layer, inputs));
  AMPD_ASSIGN_OR_RETURN(LayerOutput y, AddKind(layer, inputs));
  if (y.padded()) return y;
  // Attention gives a step for each of its first input's; the others keep every axis of time that they are let read.
  const bool last_step = (layer.has_lstm() && layer.lstm().output() == v1::RecurrentLayer::LAST_STEP) ||
                         (layer.has_gru() && layer.gru().output() == v1::RecurrentLayer::LAST_STEP);
  if (last_step) return y;
  if (layer.has_multi_head_attention()) {
    y.lengths = inputs[0].lengths;
    return y;
  }
  for (const LayerOutput& input : inputs) y.lengths = std::max(y.lengths, input.lengths);
  return y;
}

absl::StatusOr<LayerOutput> LayerBuilder::AddKind(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) {
  if (layer.kind_case() == v1::Layer::kAdd) return Combine(layer, OpKind::kAdd, false, inputs);
  if (layer.kind_case() == v1::Layer::kMul) return Combine(layer, OpKind::kMul, true, inputs);
  if (layer.kind_case() == v1::Layer::kConcat) return Concat(layer, inputs);
  if (IsActivation(layer)) return ActivationLayer(layer, inputs[0]);
  if (layer.kind_case() == v1::Layer::kMultiHeadAttention) return Attention(layer, inputs);
  const LayerOutput& x = inputs[0];
  switch (layer.kind_case()) {
    case v1::Layer::kDense:
      return Dense(layer, x);
    case v1::Layer::kConv2D:
      return Conv2d(layer, x);
    case v1::Layer::kBatchNorm:
      return BatchNorm(layer, x);
    case v1::Layer::kMaxPool:
      return Pool(layer, OpKind::kMaxPool2d, layer.max_pool(), x);
    case v1::Layer::kAvgPool:
      return Pool(layer, OpKind::kAvgPool2d, layer.avg_pool(), x);
    case v1::Layer::kFlatten:
      return Flatten(layer, x);
    case v1::Layer::kDropout:
      return Dropout(layer, x);
    case v1::Layer::kConvTranspose2D:
      return ConvTranspose2d(layer, x);
    case v1::Layer::kLayerNorm:
      return LayerNorm(layer, x);
    case v1::Layer::kRmsNorm:
      return RmsNorm(layer, x);
    case v1::Layer::kGroupNorm: {
      const v1::GroupNormLayer& norm = layer.group_norm();
      return GroupNorm(layer, norm.groups(), norm.epsilon(), norm.affine(), x);
    }
    case v1::Layer::kInstanceNorm: {
      const v1::InstanceNormLayer& norm = layer.instance_norm();
      return GroupNorm(layer, graph_->type(x.value).shape.back(), norm.epsilon(), norm.affine(), x);
    }
    case v1::Layer::kLstm:
      return Recurrent(layer, OpKind::kLstm, layer.lstm(), x);
    case v1::Layer::kGru:
      return Recurrent(layer, OpKind::kGru, layer.gru(), x);
    case v1::Layer::kEmbedding:
      return Embedding(layer, x);
    case v1::Layer::kPositionalEmbedding:
      return PositionalEmbedding(layer, x);
    case v1::Layer::kSlice:
      return Slice(layer, x);
    case v1::Layer::kTranspose:
      return Transpose(layer, x);
    case v1::Layer::kReshape:
      return Reshape(layer, x);
    case v1::Layer::kGlobalAvgPool: {
      AMPD_RETURN_IF_ERROR(RequireImage(OpKind::kGlobalAvgPool, layer.name(), x.value));
      AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kGlobalAvgPool, layer.name(), {x.value}, {}));
      return LayerOutput{y, {}};
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.name(), " has no kind"));
  }
}

absl::StatusOr<LayerOutput> LayerBuilder::Dense(const v1::Layer& layer, const LayerOutput& x) {
  const Shape& shape = graph_->type(x.value).shape;
  if (shape.size() != 2 && shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("[dense] needs [batch, features] or [batch, time, features], has ", ShapeString(shape),
                     " (a flatten or global_avg_pool layer before it makes that), node ", layer.name()));
  }
  const v1::DenseLayer& dense = layer.dense();
  const double bound = 1.0 / std::sqrt(static_cast<double>(shape.back()));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId w, DenseWeight(layer, x, bound));
  AMPD_ASSIGN_OR_RETURN(ir::ValueId y, Product(layer.name(), x.value, w));
  AMPD_ASSIGN_OR_RETURN(y, BiasAndActivation(layer.name(), y, dense.bias(),
                                             BiasInitializer(dense.init(), Uniform(bound)), dense.activation()));
  return LayerOutput{y, {}};
}

absl::StatusOr<ir::ValueId> LayerBuilder::DenseWeight(const v1::Layer& layer, const LayerOutput& x, double bound) {
  const v1::DenseLayer& dense = layer.dense();
  const Shape matrix = {dense.units(), graph_->type(x.value).shape.back()};
  if (dense.weight_of().empty()) {
    ir::Persistent weight{.name = layer.name() + ".weight",
                          .type = {DType::kF32, matrix},
                          .init = WeightInitializer(dense.init(), matrix, Uniform(bound))};
    if (!x.flattened.empty()) weight.layout = ir::DiskLayout::kChannelsLast, weight.flattened = x.flattened;
    return graph_->AddParameter(std::move(weight));
  }
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("[dense] weight_of ", dense.weight_of(), ": ", what, ", node ", layer.name()));
  };
  const auto table = tables_.find(dense.weight_of());
  if (table == tables_.end()) return refuse("no earlier embedding layer has that name");
  if (!x.flattened.empty()) return refuse("the layer reads a flattened image, whose order in memory is not PyTorch's");
  const Shape& shape = graph_->type(table->second).shape;
  if (shape == matrix) return table->second;
  return refuse(absl::StrCat("its table is ", ShapeString(shape), ", a weight of ", ShapeString(matrix), " is needed"));
}

absl::StatusOr<LayerOutput> LayerBuilder::Conv2d(const v1::Layer& layer, const LayerOutput& input) {
  AMPD_ASSIGN_OR_RETURN(LayerOutput x, AsImage(layer.name(), input));
  AMPD_RETURN_IF_ERROR(RequireImage(OpKind::kConv2d, layer.name(), x.value));
  AMPD_ASSIGN_OR_RETURN(x.value, ZeroedPastLengths(layer.name(), x));
  const v1::Conv2dLayer& conv = layer.conv2d();
  const Shape& shape = graph_->type(x.value).shape;
  const Ints kernel = Pair(conv.kernel(), {1, 1});
  const Ints strides = Pair(conv.stride(), {1, 1});
  const Ints dilations = Pair(conv.dilation(), {1, 1});
  const Ints span = {(kernel[0] - 1) * dilations[0] + 1, (kernel[1] - 1) * dilations[1] + 1};
  const int64_t groups = std::max<int64_t>(conv.groups(), 1);
  if (shape[3] % groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat("[conv2d] ", groups, " groups do not divide the input's ", shape[3],
                                                   " channels, node ", layer.name()));
  }
  const Ints pads = Pads(conv.pads(), conv.padding(), shape, span, strides, x.padded());
  const bool same = conv.pads().empty() && conv.padding() == v1::Padding::SAME;
  ir::Attributes attributes{{"strides", strides}, {"pads", pads}};
  if (dilations != Ints{1, 1}) attributes.Set("dilations", dilations);
  if (groups > 1) attributes.Set("groups", groups);
  const Shape filter = {conv.filters(), kernel[0], kernel[1], shape[3] / groups};
  const double bound = 1.0 / std::sqrt(static_cast<double>(filter[1] * filter[2] * filter[3]));
  const ir::ValueId w = graph_->AddParameter({.name = layer.name() + ".weight",
                                              .type = {DType::kF32, filter},
                                              .init = WeightInitializer(conv.init(), filter, Uniform(bound)),
                                              .layout = ir::DiskLayout::kConvFilter});
  AMPD_ASSIGN_OR_RETURN(ir::ValueId y, Emit(OpKind::kConv2d, layer.name(), {x.value, w}, attributes));
  AMPD_ASSIGN_OR_RETURN(y, BiasAndActivation(layer.name(), y, conv.bias(), BiasInitializer(conv.init(), Uniform(bound)),
                                             conv.activation()));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId lengths,
                        Shortened(x.lengths, MoreSteps(same, pads, span[0], strides[0]), strides[0]));
  return LayerOutput{y, {}, lengths};
}

ir::ValueId LayerBuilder::AddVector(std::string name, const LayerOutput& x, ir::Initializer::Kind init) {
  return graph_->AddParameter(ChannelVector(std::move(name), graph_->type(x.value).shape.back(), x, init));
}

absl::StatusOr<LayerOutput> LayerBuilder::BatchNorm(const v1::Layer& layer, const LayerOutput& x) {
  const Shape shape = graph_->type(x.value).shape;
  const int64_t channels = shape.back();
  const int64_t count = NumElements(shape) / channels;
  if (training_ && count < 2) {
    return absl::InvalidArgumentError(absl::StrCat("[batch_norm] needs more than one value a channel to train, has ",
                                                   ShapeString(shape), ", node ", layer.name()));
  }
  const auto state = [&](const char* name, ir::Initializer::Kind init) {
    return graph_->AddState(ChannelVector(absl::StrCat(layer.name(), name), channels, x, init));
  };
  const auto parameter = [&](const char* name, ir::Initializer::Kind init) {
    return graph_->AddParameter(ChannelVector(absl::StrCat(layer.name(), name), channels, x, init));
  };
  const bool zero = layer.batch_norm().zero_weight();
  const ir::ValueId scale = parameter(".weight", zero ? ir::Initializer::Kind::kZeros : ir::Initializer::Kind::kOnes);
  const ir::ValueId bias = parameter(".bias", ir::Initializer::Kind::kZeros);
  const ir::ValueId mean = state(".running_mean", ir::Initializer::Kind::kZeros);
  const ir::ValueId var = state(".running_var", ir::Initializer::Kind::kOnes);
  const ir::ValueId batches =
      graph_->AddState({.name = layer.name() + ".num_batches_tracked", .type = {DType::kI64, {}}});
  const ir::Attributes epsilon{{"epsilon", layer.batch_norm().epsilon()}};
  if (!training_) {
    ir::Attributes attributes = epsilon;
    attributes.Set("momentum", layer.batch_norm().momentum());
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kBatchNormInference, layer.name(),
                                                    {x.value, scale, bias, mean, var}, attributes));
    return LayerOutput{y, x.flattened};
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kBatchNorm, layer.name(), {x.value, scale, bias}, epsilon));
  const std::vector<ir::ValueId> outputs = graph_->nodes.back().outputs;
  ir::Node update{.op = OpKind::kBatchNormUpdate,
                  .name = layer.name() + ".batch_norm_update",
                  .layer = layer.name(),
                  .inputs = {outputs[1], outputs[2], mean, var, batches},
                  .attributes = {{"momentum", layer.batch_norm().momentum()}, {"count", count}}};
  AMPD_RETURN_IF_ERROR(ops::Emit(graph_, std::move(update)).status());
  return LayerOutput{y, x.flattened};
}

absl::StatusOr<LayerOutput> LayerBuilder::Pool(const v1::Layer& layer, OpKind op, const v1::Pool2dLayer& pool,
                                               const LayerOutput& x) {
  AMPD_RETURN_IF_ERROR(RequireImage(op, layer.name(), x.value));
  const Ints size = Pair(pool.size(), {1, 1});
  const Ints strides = Pair(pool.stride(), size);
  const Ints dilations = Pair(pool.dilation(), {1, 1});
  const Ints span = {(size[0] - 1) * dilations[0] + 1, (size[1] - 1) * dilations[1] + 1};
  const bool same = pool.pads().empty() && pool.padding() == v1::Padding::SAME;
  const Ints pads = Pads(pool.pads(), pool.padding(), graph_->type(x.value).shape, span, strides, x.padded());
  if (x.padded() && span[0] > 1 && (same || pads[0] + pads[2] > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(op),
                                                   "] would mix steps that count with padding: of "
                                                   "samples with lengths, windows over time need padding VALID, node ",
                                                   layer.name()));
  }
  ir::Attributes attributes{{"size", size}, {"strides", strides}, {"pads", pads}};
  if (dilations != Ints{1, 1}) attributes.Set("dilations", dilations);
  if (pool.count_include_pad()) attributes.Set("count_include_pad", int64_t{1});
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(op, layer.name(), {x.value}, attributes));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId lengths,
                        Shortened(x.lengths, MoreSteps(same, pads, span[0], strides[0]), strides[0]));
  return LayerOutput{y, {}, lengths};
}

absl::StatusOr<LayerOutput> LayerBuilder::Flatten(const v1::Layer& layer, const LayerOutput& x) {
  const Shape shape = graph_->type(x.value).shape;
  if (shape.size() == 2) return x;
  if (shape.size() == 3) {
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kReshape, layer.name(), {x.value},
                                                    {{"shape", Ints{shape[0], shape[1] * shape[2]}}}));
    return LayerOutput{y, {}};
  }
  AMPD_RETURN_IF_ERROR(RequireImage(OpKind::kReshape, layer.name(), x.value));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kReshape, layer.name(), {x.value},
                                                  {{"shape", Ints{shape[0], shape[1] * shape[2] * shape[3]}}}));
  const bool same_order = shape[3] == 1 || shape[1] * shape[2] == 1;
  return LayerOutput{y, same_order ? Shape{} : Shape{shape[1], shape[2], shape[3]}};
}

absl::StatusOr<LayerOutput> LayerBuilder::InTorchOrder(const std::string& layer, const LayerOutput& x) {
  if (x.flattened.empty()) return x;
  const Shape flat = graph_->type(x.value).shape;
  AMPD_ASSIGN_OR_RETURN(ir::ValueId y,
                        Reshape(layer, x.value, {flat[0], x.flattened[0] * x.flattened[1], x.flattened[2]}, ".pixels"));
  AMPD_ASSIGN_OR_RETURN(y, Emit(OpKind::kTranspose, layer, {y}, {{"perm", Ints{0, 2, 1}}}, ".channels"));
  AMPD_ASSIGN_OR_RETURN(y, Reshape(layer, y, flat, ".outputs"));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Dropout(const v1::Layer& layer, const LayerOutput& x) {
  if (!training_ || layer.dropout().rate() == 0) return x;
  const int64_t stream = RngStream(absl::StrCat(layer.name(), ".dropout"));
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kDropout, layer.name(), {x.value},
                                                  {{"rate", layer.dropout().rate()}, {"stream", stream}}));
  return LayerOutput{y, x.flattened};
}

absl::StatusOr<ir::ValueId> LayerBuilder::BiasAndActivation(const std::string& layer, ir::ValueId y, bool bias,
                                                            ir::Initializer first, v1::Activation::Kind activation) {
  if (bias) {
    const ir::ValueId b = graph_->AddParameter(
        {.name = layer + ".bias", .type = {DType::kF32, {graph_->type(y).shape.back()}}, .init = first});
    AMPD_ASSIGN_OR_RETURN(y, Emit(OpKind::kBiasAdd, layer, {y, b}, {}));
  }
  return Activate(layer, y, activation);
}

absl::StatusOr<ir::ValueId> LayerBuilder::Emit(OpKind op, const std::string& layer, std::vector<ir::ValueId> inputs,
                                               ir::Attributes attributes, const std::string& suffix) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> outputs,
                        ops::Emit(graph_, {.op = op,
                                           .name = absl::StrCat(layer, ".", ir::OpName(op), suffix),
                                           .layer = layer,
                                           .inputs = std::move(inputs),
                                           .attributes = std::move(attributes)}));
  return outputs[0];
}

absl::Status LayerBuilder::RequireImage(OpKind op, const std::string& layer, ir::ValueId x) const {
  const Shape& shape = graph_->type(x).shape;
  if (shape.size() == 4) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("[", op == OpKind::kReshape ? "flatten" : ir::OpName(op),
                                                 "] needs [batch, height, width, channels], has ", ShapeString(shape),
                                                 ", node ", layer));
}

}  // namespace ampd::models
