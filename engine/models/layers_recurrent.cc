// lstm and gru layers, stacked.
#include <cmath>
#include <utility>

#include "engine/core/rng.h"
#include "engine/core/status.h"
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
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> outputs, RecurrentLevel(layer.name(), op, spec, level, value));
    const bool last = level + 1 == spec.layers();
    value = outputs[last && spec.output() == v1::RecurrentLayer::LAST_STEP ? 1 : 0];
    if (last || !training_ || spec.dropout() == 0) continue;
    const int64_t stream = RngStream(absl::StrCat(layer.name(), ".dropout_l", level));
    AMPD_ASSIGN_OR_RETURN(value, Emit(OpKind::kDropout, layer.name(), {value},
                                      {{"rate", spec.dropout()}, {"stream", stream}}, absl::StrCat("_l", level)));
  }
  return LayerOutput{value, {}};
}

absl::StatusOr<std::vector<ir::ValueId>> LayerBuilder::RecurrentLevel(const std::string& layer, OpKind op,
                                                                      const v1::RecurrentLayer& spec, int64_t level,
                                                                      ir::ValueId x) {
  const int64_t gates = (op == OpKind::kLstm ? 4 : 3) * spec.units();
  const double bound = 1.0 / std::sqrt(static_cast<double>(spec.units()));
  const auto parameter = [&](const char* name, Shape shape) {
    return graph_->AddParameter({.name = absl::StrCat(layer, ".", name, "_l", level),
                                 .type = {DType::kF32, std::move(shape)},
                                 .init = {ir::Initializer::Kind::kUniform, bound}});
  };
  std::vector<ir::ValueId> inputs = {x};
  inputs.push_back(parameter("weight_ih", {gates, graph_->type(x).shape[2]}));
  inputs.push_back(parameter("weight_hh", {gates, spec.units()}));
  if (spec.bias()) {
    inputs.push_back(parameter("bias_ih", {gates}));
    inputs.push_back(parameter("bias_hh", {gates}));
  }
  return ops::Emit(graph_, {.op = op,
                            .name = absl::StrCat(layer, ".", ir::OpName(op), "_l", level),
                            .layer = layer,
                            .inputs = std::move(inputs),
                            .attributes = {{"direction", std::string("forward")}}});
}

}  // namespace ampd::models
