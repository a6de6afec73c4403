// lstm and gru layers, stacked.
#include <cmath>
#include <memory>
#include <utility>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/models/layers.h"
#include "engine/ops/op_def.h"

namespace ampd::models {

using ir::OpKind;

absl::StatusOr<LayerOutput> LayerBuilder::Recurrent(const v1::Layer& layer, OpKind op, const v1::RecurrentLayer& spec,
                                                    const LayerOutput& x) {
  ir::ValueId value = x.value;
  Shape shape = graph_->type(value).shape;
  if (shape.size() == 4) {
    shape = {shape[0], shape[1], shape[2] * shape[3]};
    AMPD_ASSIGN_OR_RETURN(value, Emit(OpKind::kReshape, layer.name(), {value},
                                      {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}}));
  }
  if (shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(op),
                                                   "] needs [batch, time, features] or an image, has ",
                                                   ShapeString(shape), ", node ", layer.name()));
  }
  for (int64_t level = 0; level < spec.layers(); ++level) {
    const bool last = level + 1 == spec.layers();
    const size_t output = last && spec.output() == v1::RecurrentLayer::LAST_STEP ? 1 : 0;
    const std::string suffix = absl::StrCat("_l", level);
    const LayerOutput input{value, {}, x.lengths};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> forward,
                          RecurrentLevel(layer.name(), op, spec, suffix, false, input));
    value = forward[output];
    if (spec.bidirectional()) {
      AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> reverse,
                            RecurrentLevel(layer.name(), op, spec, suffix + "_reverse", true, input));
      AMPD_ASSIGN_OR_RETURN(
          value, Emit(OpKind::kConcat, layer.name(), {value, reverse[output]}, {{"axis", int64_t{-1}}}, suffix));
    }
    if (last || !training_ || spec.dropout() == 0) continue;
    const int64_t stream = RngStream(absl::StrCat(layer.name(), ".dropout_l", level));
    AMPD_ASSIGN_OR_RETURN(
        value, Emit(OpKind::kDropout, layer.name(), {value}, {{"rate", spec.dropout()}, {"stream", stream}}, suffix));
  }
  return LayerOutput{value, {}};
}

absl::StatusOr<std::vector<ir::ValueId>> LayerBuilder::RecurrentLevel(const std::string& layer, OpKind op,
                                                                      const v1::RecurrentLayer& spec,
                                                                      const std::string& suffix, bool reverse,
                                                                      const LayerOutput& x) {
  const int64_t gates = (op == OpKind::kLstm ? 4 : 3) * spec.units();
  const double bound = 1.0 / std::sqrt(static_cast<double>(spec.units()));
  const auto parameter = [&](const char* name, Shape shape) {
    return graph_->AddParameter({.name = absl::StrCat(layer, ".", name, suffix),
                                 .type = {DType::kF32, std::move(shape)},
                                 .init = {ir::Initializer::Kind::kUniform, bound}});
  };
  std::vector<ir::ValueId> inputs = {x.value};
  inputs.push_back(parameter("weight_ih", {gates, graph_->type(x.value).shape[2]}));
  inputs.push_back(parameter("weight_hh", {gates, spec.units()}));
  if (spec.bias()) {
    inputs.push_back(parameter("bias_ih", {gates}));
    inputs.push_back(parameter("bias_hh", {gates}));
  } else if (x.padded()) {
    // The op takes lengths behind biases only.
    const auto zeros = std::make_shared<Tensor>(DType::kF32, Shape{gates});
    inputs.push_back(graph_->AddConstant(absl::StrCat(layer, ".no_bias_ih", suffix), zeros));
    inputs.push_back(graph_->AddConstant(absl::StrCat(layer, ".no_bias_hh", suffix), zeros));
  }
  if (x.padded()) inputs.push_back(x.lengths);
  return ops::Emit(graph_, {.op = op,
                            .name = absl::StrCat(layer, ".", ir::OpName(op), suffix),
                            .layer = layer,
                            .inputs = std::move(inputs),
                            .attributes = {{"direction", std::string(reverse ? "reverse" : "forward")}}});
}

}  // namespace ampd::models
