// Layers without weights of a product: activations, embedding, reshape, concat, mul.
#include <utility>

#include "engine/core/status.h"
#include "engine/models/layers.h"
#include "engine/models/weight_init.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

// The op of an activation layer; kCast: no such layer.
OpKind ActivationOp(const v1::Layer& layer) {
  switch (layer.kind_case()) {
    case v1::Layer::kRelu:
      return OpKind::kRelu;
    case v1::Layer::kLeakyRelu:
      return OpKind::kLeakyRelu;
    case v1::Layer::kElu:
      return OpKind::kElu;
    case v1::Layer::kGelu:
      return OpKind::kGelu;
    case v1::Layer::kSilu:
      return OpKind::kSilu;
    case v1::Layer::kSigmoid:
      return OpKind::kSigmoid;
    case v1::Layer::kTanh:
      return OpKind::kTanh;
    case v1::Layer::kSoftplus:
      return OpKind::kSoftplus;
    default:
      return OpKind::kCast;
  }
}

ir::Attributes ActivationAttributes(const v1::Layer& layer) {
  if (layer.has_leaky_relu()) return {{"alpha", layer.leaky_relu().negative_slope()}};
  if (layer.has_elu()) return {{"alpha", layer.elu().alpha()}};
  if (layer.has_gelu() && layer.gelu().tanh()) return {{"approximate", std::string("tanh")}};
  return {};
}

// What the `activation` of a dense or convolution layer means.
std::pair<OpKind, ir::Attributes> FollowingActivation(v1::Activation::Kind kind) {
  switch (kind) {
    case v1::Activation::RELU:
      return {OpKind::kRelu, {}};
    case v1::Activation::LEAKY_RELU:
      return {OpKind::kLeakyRelu, {{"alpha", 0.01}}};
    case v1::Activation::ELU:
      return {OpKind::kElu, {{"alpha", 1.0}}};
    case v1::Activation::GELU:
      return {OpKind::kGelu, {}};
    case v1::Activation::GELU_TANH:
      return {OpKind::kGelu, {{"approximate", std::string("tanh")}}};
    case v1::Activation::SILU:
      return {OpKind::kSilu, {}};
    case v1::Activation::SIGMOID:
      return {OpKind::kSigmoid, {}};
    case v1::Activation::TANH:
      return {OpKind::kTanh, {}};
    case v1::Activation::SOFTPLUS:
      return {OpKind::kSoftplus, {}};
    default:
      return {OpKind::kCast, {}};
  }
}

absl::Status BadLayer(const char* kind, const v1::Layer& layer, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("[", kind, "] ", message, ", node ", layer.name()));
}

}  // namespace

bool IsActivation(const v1::Layer& layer) { return ActivationOp(layer) != OpKind::kCast; }

absl::StatusOr<LayerOutput> LayerBuilder::ActivationLayer(const v1::Layer& layer, const LayerOutput& x) {
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y,
                        Emit(ActivationOp(layer), layer.name(), {x.value}, ActivationAttributes(layer)));
  return LayerOutput{y, x.flattened};
}

absl::StatusOr<ir::ValueId> LayerBuilder::Activate(const std::string& layer, ir::ValueId y, v1::Activation::Kind kind) {
  auto [op, attributes] = FollowingActivation(kind);
  if (op == OpKind::kCast) return y;
  return Emit(op, layer, {y}, std::move(attributes));
}

absl::StatusOr<LayerOutput> LayerBuilder::Embedding(const v1::Layer& layer, const LayerOutput& x) {
  const v1::EmbeddingLayer& spec = layer.embedding();
  if (!x.flattened.empty()) {
    return BadLayer("embedding", layer, "reads a flattened image, whose order in memory is not PyTorch's");
  }
  const Shape rows = {spec.vocabulary(), spec.features()};
  const ir::Initializer standard = {ir::Initializer::Kind::kNormal, 1};
  const ir::ValueId table = graph_->AddParameter({.name = layer.name() + ".weight",
                                                  .type = {DType::kF32, rows},
                                                  .init = WeightInitializer(spec.init(), rows, standard)});
  tables_[layer.name()] = table;
  ir::ValueId ids = x.value;
  // The batch is f32, which holds ids up to 2^24 exactly.
  if (graph_->type(ids).dtype != DType::kI32) {
    AMPD_ASSIGN_OR_RETURN(ids, Emit(OpKind::kCast, layer.name(), {ids}, {{"dtype", std::string("i32")}}));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kEmbedding, layer.name(), {table, ids}, {}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::PositionalEmbedding(const v1::Layer& layer, const LayerOutput& x) {
  const v1::PositionalEmbeddingLayer& spec = layer.positional_embedding();
  const Shape shape = graph_->type(x.value).shape;
  if (shape.size() != 3) {
    return BadLayer("positional_embedding", layer,
                    absl::StrCat("needs [batch, time, features], has ", ShapeString(shape)));
  }
  if (shape[1] > spec.positions()) {
    return BadLayer("positional_embedding", layer,
                    absl::StrCat("positions are ", spec.positions(), ", the sequence has ", shape[1], " steps"));
  }
  ir::ValueId rows = graph_->AddParameter({.name = layer.name() + ".weight",
                                           .type = {DType::kF32, {spec.positions(), shape[2]}},
                                           .init = {ir::Initializer::Kind::kNormal, spec.deviation()}});
  if (shape[1] < spec.positions()) {
    AMPD_ASSIGN_OR_RETURN(rows,
                          Emit(OpKind::kSlice, layer.name(), {rows},
                               {{"starts", Ints{0, 0}}, {"ends", Ints{shape[1], shape[2]}}, {"steps", Ints{1, 1}}}));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kAdd, layer.name(), {x.value, rows}, {}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Slice(const v1::Layer& layer, const LayerOutput& x) {
  const v1::SliceLayer& spec = layer.slice();
  const Shape shape = graph_->type(x.value).shape;
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (!x.flattened.empty()) {
    return BadLayer("slice", layer, "reads a flattened image, whose order in memory is not PyTorch's: cut the image");
  }
  const int64_t axis = spec.axis() < 0 ? spec.axis() + rank : spec.axis();
  if (axis < 1 || axis >= rank) {
    return BadLayer("slice", layer, absl::StrCat("axis is ", spec.axis(), ", the input has axes 1 to ", rank - 1));
  }
  const int64_t extent = shape[static_cast<size_t>(axis)];
  const int64_t begin = spec.begin() < 0 ? spec.begin() + extent : spec.begin();
  const int64_t end = !spec.has_end() ? extent : spec.end() < 0 ? spec.end() + extent : spec.end();
  if (begin < 0 || begin >= end || end > extent) {
    return BadLayer("slice", layer,
                    absl::StrCat("begin and end are ", begin, " and ", end, ", axis ", axis, " has extent ", extent));
  }
  Ints starts(shape.size(), 0), ends(shape.begin(), shape.end());
  starts[static_cast<size_t>(axis)] = begin;
  ends[static_cast<size_t>(axis)] = end;
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y,
                        Emit(OpKind::kSlice, layer.name(), {x.value},
                             {{"starts", starts}, {"ends", ends}, {"steps", Ints(shape.size(), 1)}}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Transpose(const v1::Layer& layer, const LayerOutput& x) {
  const size_t rank = graph_->type(x.value).shape.size();
  if (rank == 4 || !x.flattened.empty()) {
    return BadLayer("transpose", layer, "reads an image, whose order in memory is not PyTorch's");
  }
  Ints axes = {0};
  axes.insert(axes.end(), layer.transpose().axes().begin(), layer.transpose().axes().end());
  if (axes.size() == 1 && rank == 3) axes = {0, 2, 1};
  if (axes.size() != rank || rank < 3) {
    return BadLayer("transpose", layer,
                    absl::StrCat(axes.size() - 1, " axes are given, the input has ", rank - 1, " behind the batch"));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kTranspose, layer.name(), {x.value}, {{"perm", axes}}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Reshape(const v1::Layer& layer, const LayerOutput& x) {
  const Shape from = graph_->type(x.value).shape;
  Ints to(layer.reshape().shape().begin(), layer.reshape().shape().end());
  // Rows of whole pixels, or of a pixel's parts, are the same in either order.
  const bool rows_of_pixels = from.size() == 4 && to.size() == 2 && to[0] == -1 && from[3] % to[1] == 0;
  if ((from.size() == 4 && !rows_of_pixels) || !x.flattened.empty()) {
    return BadLayer("reshape", layer,
                    "reads an image, whose order in memory is not PyTorch's: flatten or pool it first, or take [-1, "
                    "features] with features that divide the channels");
  }
  const int64_t features = NumElements(from) / from[0];
  int64_t known = 1;
  for (int64_t extent : to) {
    // Products past the input's size cannot fit, and would overflow.
    if (extent > 0) known = known > features ? known : known * extent;
  }
  for (int64_t& extent : to) {
    if (extent == -1) extent = features / known;
  }
  to.insert(to.begin(), from[0]);
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kReshape, layer.name(), {x.value}, {{"shape", to}}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Concat(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) {
  std::vector<ir::ValueId> values;
  for (const LayerOutput& input : inputs) {
    if (!input.flattened.empty()) {
      return BadLayer("concat", layer,
                      "reads a flattened image, whose order in memory is not PyTorch's: concatenate "
                      "the images, then flatten");
    }
    values.push_back(input.value);
  }
  const int64_t rank = static_cast<int64_t>(graph_->type(values[0]).shape.size());
  const int64_t axis = layer.concat().axis();
  if (axis == 0 || axis <= -rank || axis >= rank) {
    return BadLayer("concat", layer, absl::StrCat("axis is ", axis, ", the input has axes 1 to ", rank - 1));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kConcat, layer.name(), std::move(values), {{"axis", axis}}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::Combine(const v1::Layer& layer, OpKind op, bool broadcast,
                                                  const std::vector<LayerOutput>& inputs) {
  LayerOutput result = inputs[0];
  const char* kind = op == OpKind::kAdd ? "add" : "mul";
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Shape &a = graph_->type(result.value).shape, &b = graph_->type(inputs[i].value).shape;
    if (broadcast ? a.size() != b.size() : a != b) {
      return BadLayer(kind, layer,
                      absl::StrCat("input ", i, " has shape ", ShapeString(b), ", the others ", ShapeString(a)));
    }
    if (inputs[i].flattened != result.flattened) {
      return BadLayer(kind, layer,
                      absl::StrCat("inputs 0 and ", i, " are flattened images of different shapes, ",
                                   ShapeString(result.flattened), " and ", ShapeString(inputs[i].flattened)));
    }
    const std::string suffix = i + 1 == inputs.size() ? "" : absl::StrCat("_", i);
    AMPD_ASSIGN_OR_RETURN(result.value, Emit(op, layer.name(), {result.value, inputs[i].value}, {}, suffix));
  }
  return result;
}

}  // namespace ampd::models
