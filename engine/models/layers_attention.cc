// Products over the last axis, and multi_head_attention built on them.
#include <cmath>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/layers.h"
#include "engine/models/weight_init.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

ir::Initializer UniformIn(double bound) { return {ir::Initializer::Kind::kUniform, bound}; }

// `begin` to `end` of the first axis of a tensor of `shape`, all of the others.
ir::Attributes Cut(const Shape& shape, int64_t begin, int64_t end) {
  Ints starts(shape.size(), 0), ends(shape.begin(), shape.end());
  starts[0] = begin;
  ends[0] = end;
  return {{"starts", starts}, {"ends", ends}, {"steps", Ints(shape.size(), 1)}};
}

}  // namespace

absl::StatusOr<ir::ValueId> LayerBuilder::Reshape(const std::string& layer, ir::ValueId x, const Shape& shape,
                                                  const std::string& suffix) {
  return Emit(OpKind::kReshape, layer, {x}, {{"shape", Ints(shape.begin(), shape.end())}}, suffix);
}

// As one matrix of rows, so that the weight is read from its published copy and its gradient is one product. The bias
// is added in x's shape: what is added behind it may go with it then.
absl::StatusOr<ir::ValueId> LayerBuilder::Product(const std::string& layer, ir::ValueId x, ir::ValueId w,
                                                  ir::ValueId bias, const std::string& suffix) {
  Shape shape = graph_->type(x).shape;
  const bool rows = shape.size() == 2;
  if (!rows) {
    AMPD_ASSIGN_OR_RETURN(x, Reshape(layer, x, {NumElements(shape) / shape.back(), shape.back()}, suffix + "_rows"));
  }
  AMPD_ASSIGN_OR_RETURN(ir::ValueId y, Emit(OpKind::kMatmul, layer, {x, w}, {{"transpose_b", int64_t{1}}}, suffix));
  if (!rows) {
    shape.back() = graph_->type(y).shape[1];
    AMPD_ASSIGN_OR_RETURN(y, Reshape(layer, y, shape, suffix + "_back"));
  }
  if (bias < 0) return y;
  return Emit(OpKind::kBiasAdd, layer, {y, bias}, {}, suffix);
}

absl::StatusOr<std::vector<ir::ValueId>> LayerBuilder::Projections(const v1::Layer& layer, ir::ValueId x,
                                                                   ir::ValueId context) {
  const std::string& name = layer.name();
  const int64_t features = graph_->type(x).shape[2];
  // Xavier's bound for [3 features, features].
  const Shape matrix = {3 * features, features};
  const ir::Initializer xavier = UniformIn(std::sqrt(6.0 / static_cast<double>(4 * features)));
  const ir::ValueId w =
      graph_->AddParameter({.name = name + ".in_proj_weight",
                            .type = {DType::kF32, matrix},
                            .init = WeightInitializer(layer.multi_head_attention().init(), matrix, xavier)});
  ir::ValueId bias = -1;
  if (layer.multi_head_attention().bias()) {
    bias = graph_->AddParameter({.name = name + ".in_proj_bias", .type = {DType::kF32, {3 * features}}});
  }
  if (context == x) {
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId all, Product(name, x, w, bias, "_in"));
    return std::vector<ir::ValueId>{all};
  }
  const char* const parts[] = {"_q", "_k", "_v"};
  std::vector<ir::ValueId> result;
  for (int64_t i = 0; i < 3; ++i) {
    const std::string suffix = absl::StrCat(parts[i], "_weight");
    AMPD_ASSIGN_OR_RETURN(
        const ir::ValueId rows,
        Emit(OpKind::kSlice, name, {w}, Cut({3 * features, features}, i * features, (i + 1) * features), suffix));
    ir::ValueId part_bias = -1;
    if (bias >= 0) {
      AMPD_ASSIGN_OR_RETURN(part_bias,
                            Emit(OpKind::kSlice, name, {bias}, Cut({3 * features}, i * features, (i + 1) * features),
                                 absl::StrCat(parts[i], "_bias")));
    }
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId part, Product(name, i == 0 ? x : context, rows, part_bias, parts[i]));
    result.push_back(part);
  }
  return result;
}

absl::StatusOr<LayerOutput> LayerBuilder::Attention(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) {
  const v1::MultiHeadAttentionLayer& attention = layer.multi_head_attention();
  const ir::ValueId x = inputs[0].value, context = inputs.back().value;
  const Shape shape = graph_->type(x).shape, of_context = graph_->type(context).shape;
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("[multi_head_attention] ", what, ", node ", layer.name()));
  };
  if (shape.size() != 3 || of_context.size() != 3) {
    return refuse(
        absl::StrCat("needs [batch, time, features], has ", ShapeString(shape), " and ", ShapeString(of_context)));
  }
  if (of_context[2] != shape[2]) {
    return refuse(absl::StrCat("inputs have ", shape[2], " and ", of_context[2], " features"));
  }
  if (shape[2] % attention.heads() != 0) {
    return refuse(absl::StrCat(attention.heads(), " heads do not divide ", shape[2], " features"));
  }
  AMPD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> qkv, Projections(layer, x, context));
  const OpKind op = qkv.size() == 1 ? OpKind::kSelfAttention : OpKind::kAttention;
  if (inputs.back().padded()) {
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId mask, StepMask(inputs.back().lengths, of_context[1], 3));
    qkv.push_back(mask);
  }
  ir::Attributes attributes{{"heads", attention.heads()}};
  if (attention.causal()) attributes.Set("causal", int64_t{1});
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(op, layer.name(), std::move(qkv), attributes));
  const Shape matrix = {shape[2], shape[2]};
  const ir::Initializer uniform = UniformIn(1.0 / std::sqrt(static_cast<double>(shape[2])));
  const ir::ValueId w = graph_->AddParameter({.name = layer.name() + ".out_proj.weight",
                                              .type = {DType::kF32, matrix},
                                              .init = WeightInitializer(attention.out_init(), matrix, uniform)});
  ir::ValueId bias = -1;
  if (attention.bias()) {
    bias = graph_->AddParameter({.name = layer.name() + ".out_proj.bias", .type = {DType::kF32, {shape[2]}}});
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId out, Product(layer.name(), y, w, bias, "_out"));
  return LayerOutput{out, {}};
}

}  // namespace ampd::models
