#include "engine/models/build_layers.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/models/model.h"
#include "proto/spec/resolve.h"

namespace ampd::models {
namespace {

constexpr double kMaxElements = 1e12;

absl::StatusOr<std::vector<LayerOutput>> InputsOf(const v1::Layer& layer,
                                                  const std::map<std::string, LayerOutput>& outputs,
                                                  const LayerOutput& before) {
  std::vector<LayerOutput> inputs;
  for (const std::string& name : layer.inputs()) {
    const auto it = outputs.find(name);
    if (it == outputs.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.name(), " reads ", name, ", which stands nowhere before it"));
    }
    inputs.push_back(it->second);
  }
  if (inputs.empty()) inputs.push_back(before);
  return inputs;
}

// Whose tensor each name is. Layers' names may hold dots, and those of their tensors follow from them: two layers can
// come to one name, which would be one weight to whoever shares by name.
class TensorOwners {
 public:
  explicit TensorOwners(const ir::Graph* graph)
      : graph_(graph), parameters_(graph->parameters.size()), states_(graph->states.size()) {}

  // Of what `layer` added to the graph.
  absl::Status Take(const std::string& layer, const std::string& field) {
    AMPD_RETURN_IF_ERROR(Take("parameter", graph_->parameters, layer, field, &parameters_));
    return Take("state", graph_->states, layer, field, &states_);
  }

 private:
  absl::Status Take(absl::string_view kind, const std::vector<ir::Persistent>& tensors, const std::string& layer,
                    const std::string& field, size_t* seen) {
    for (; *seen < tensors.size(); ++*seen) {
      const std::string& name = tensors[*seen].name;
      const auto [owner, added] = owners_.insert({name, layer});
      if (added) continue;
      return InvalidField(field + ".name",
                          absl::StrCat("layer ", layer, " would have a ", kind, " ", name, ", which is layer ",
                                       owner->second, "'s: one of them needs another name"));
    }
    return absl::OkStatus();
  }

  const ir::Graph* graph_;
  size_t parameters_, states_;
  std::map<std::string, std::string> owners_;
};

}  // namespace

absl::Status InvalidField(const std::string& field, absl::string_view description) {
  return InvalidFields({{field, std::string(description)}});
}

absl::Status ElementBudget::Count(const Shape& shape, const std::string& field) {
  double elements = 1;
  for (int64_t extent : shape) elements *= static_cast<double>(extent);
  elements_ += elements;
  if (elements_ <= kMaxElements) return absl::OkStatus();
  return InvalidField(field, "the model's parameters and activations exceed 10^12 elements");
}

absl::StatusOr<LayerOutput> AddLayers(const google::protobuf::RepeatedPtrField<v1::Layer>& layers,
                                      const std::string& field,
                                      const std::vector<std::pair<std::string, LayerOutput>>& inputs,
                                      LayerBuilder* builder, ElementBudget* budget, ir::Graph* graph) {
  std::map<std::string, LayerOutput> outputs(inputs.begin(), inputs.end());
  LayerOutput last = inputs[0].second;
  TensorOwners owners(graph);
  size_t counted = graph->parameters.size();
  for (int i = 0; i < layers.size(); ++i) {
    const std::string layer_field = absl::StrCat(field, "[", i, "]");
    absl::StatusOr<std::vector<LayerOutput>> read = InputsOf(layers[i], outputs, last);
    if (!read.ok()) return InvalidField(layer_field, read.status().message());
    absl::StatusOr<LayerOutput> output = builder->Add(layers[i], *read);
    if (!output.ok()) return InvalidField(layer_field, output.status().message());
    AMPD_RETURN_IF_ERROR(owners.Take(layers[i].name(), layer_field));
    last = *output;
    outputs[layers[i].name()] = last;
    AMPD_RETURN_IF_ERROR(budget->Count(graph->type(last.value).shape, layer_field));
    for (; counted < graph->parameters.size(); ++counted) {
      AMPD_RETURN_IF_ERROR(budget->Count(graph->parameters[counted].type.shape, layer_field));
    }
  }
  return last;
}

absl::StatusOr<LayerOutput> AddModelLayers(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch,
                                           bool training, ir::Graph* graph) {
  ElementBudget budget;
  Shape shape{batch};
  shape.insert(shape.end(), sample.input_shape.begin(), sample.input_shape.end());
  AMPD_RETURN_IF_ERROR(budget.Count(shape, "data.train"));
  LayerOutput input{graph->AddInput("x", {DType::kF32, shape}), {}};
  if (sample.lengths) input.lengths = graph->AddInput("lengths", {DType::kI32, {batch}});
  LayerBuilder layers(graph, training);
  AMPD_ASSIGN_OR_RETURN(const LayerOutput last,
                        AddLayers(model.layers(), "model.layers", {{"input", input}}, &layers, &budget, graph));
  return layers.InTorchOrder(model.layers().rbegin()->name(), last);
}

}  // namespace ampd::models
