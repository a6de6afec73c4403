#include "engine/models/onnx/initializers.h"

#include <algorithm>
#include <cmath>

#include "engine/core/tensor.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

void AddUses(const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes, InitializerUses* uses) {
  for (const ::onnx::NodeProto& node : nodes) {
    for (int i = 0; i < node.input_size(); ++i) {
      const auto it = uses->find(node.input(i));
      if (it != uses->end()) it->second.push_back({&node, i});
    }
    for (const ::onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddUses(attribute.g().node(), uses);
      for (const ::onnx::GraphProto& graph : attribute.graphs()) AddUses(graph.node(), uses);
    }
  }
}

bool AllAre(const std::vector<InitializerUse>& uses, const std::set<std::string>& ops, int input) {
  return std::all_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
    return use.input == input && ops.count(use.node->op_type()) > 0;
  });
}

// By operation the inputs that are weights.
const std::map<std::string, std::set<int>>& WeightInputs() {
  static const auto* const inputs = new std::map<std::string, std::set<int>>{
      {"BatchNormalization", {1, 2, 3, 4}},
      {"Conv", {1, 2}},
      {"ConvTranspose", {1, 2}},
      {"GRU", {1, 2, 3, 5}},
      {"Gather", {0}},
      {"Gemm", {0, 1, 2}},
      {"GroupNormalization", {1, 2}},
      {"InstanceNormalization", {1, 2}},
      {"LSTM", {1, 2, 3, 5, 6, 7}},
      {"LayerNormalization", {1, 2}},
      {"MatMul", {0, 1}},
      {"PRelu", {1}},
      {"RMSNormalization", {1}},
      {"RNN", {1, 2, 3, 5}},
  };
  return *inputs;
}

bool HasInfinity(const Tensor& tensor) {
  const absl::Span<const float> values = tensor.as<float>();
  return std::any_of(values.begin(), values.end(), [](float v) { return std::isinf(v); });
}

}  // namespace

InitializerUses UsesOfInitializers(const ::onnx::GraphProto& graph) {
  InitializerUses uses;
  for (const ::onnx::TensorProto& tensor : graph.initializer()) uses[tensor.name()];
  AddUses(graph.node(), &uses);
  return uses;
}

bool AreFilters(const std::vector<InitializerUse>& uses) { return AllAre(uses, {"Conv", "ConvTranspose"}, 1); }

bool AreStatistics(const std::vector<InitializerUse>& uses) {
  if (uses.empty()) return false;
  return AllAre(uses, {"BatchNormalization"}, kMeanInput) || AllAre(uses, {"BatchNormalization"}, kVarianceInput);
}

bool IsWeight(const ::onnx::TensorProto& tensor, const std::vector<InitializerUse>& uses) {
  return std::any_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
    // What follows a product is a bias; a number without axes is more likely a constant of the formula.
    if (use.node->op_type() == "Add") return tensor.dims_size() > 0;
    const auto known = WeightInputs().find(use.node->op_type());
    return known != WeightInputs().end() && known->second.count(use.input) > 0;
  });
}

std::set<std::string> TrainableInitializers(const ::onnx::GraphProto& graph) {
  const InitializerUses uses = UsesOfInitializers(graph);
  std::set<std::string> names;
  for (const ::onnx::TensorProto& proto : graph.initializer()) {
    if (proto.data_type() != ::onnx::TensorProto::FLOAT) continue;
    // What cannot be read the import refuses.
    const auto tensor = ToTensor(proto);
    if (!tensor.ok() || (*tensor)->size() == 0 || HasInfinity(**tensor)) continue;
    if ((*tensor)->size() > 1 || IsWeight(proto, uses.at(proto.name()))) names.insert(proto.name());
  }
  return names;
}

}  // namespace ampd::models::onnx
