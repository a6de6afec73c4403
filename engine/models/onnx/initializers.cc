#include "engine/models/onnx/initializers.h"

#include <algorithm>
#include <cmath>

#include "absl/types/optional.h"
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

constexpr size_t kMaxCopies = size_t{64} << 20;

bool IsIdentity(const ::onnx::NodeProto& node) {
  return node.op_type() == "Identity" && node.domain().empty() && node.input_size() == 1 && node.output_size() == 1;
}

bool IsOneNumber(const ::onnx::TensorProto& proto) {
  const auto tensor = ToTensor(proto);
  if (!tensor.ok() || (*tensor)->dtype() != DType::kF32) return false;
  const absl::Span<const float> values = (*tensor)->as<float>();
  return std::all_of(values.begin(), values.end(), [&](float value) { return value == values[0]; });
}

}  // namespace

InitializerUses UsesOfInitializers(const ::onnx::GraphProto& graph) {
  InitializerUses uses;
  for (const ::onnx::TensorProto& tensor : graph.initializer()) uses[tensor.name()];
  AddUses(graph.node(), &uses);
  return uses;
}

absl::Status GiveIdentitiesTheirOwn(::onnx::GraphProto* graph) {
  struct Vector {
    const ::onnx::TensorProto* tensor;
    // Whether it is one number again and again; looked at once, whoever reads it.
    absl::optional<bool> constant;

    bool IsConstant() {
      if (!constant.has_value()) constant = IsOneNumber(*tensor);
      return *constant;
    }
  };
  std::map<std::string, Vector> vectors;
  for (const ::onnx::TensorProto& tensor : graph->initializer()) {
    if (tensor.data_type() == ::onnx::TensorProto::FLOAT && tensor.dims_size() == 1) vectors[tensor.name()] = {&tensor};
  }
  std::set<std::string> outputs;
  for (const ::onnx::ValueInfoProto& output : graph->output()) outputs.insert(output.name());
  InitializerUses uses;
  for (const ::onnx::NodeProto& node : graph->node()) {
    if (IsIdentity(node) && outputs.count(node.output(0)) == 0) uses[node.output(0)];
  }
  AddUses(graph->node(), &uses);
  google::protobuf::RepeatedPtrField<::onnx::NodeProto> nodes;
  size_t bytes = 0;
  for (::onnx::NodeProto& node : *graph->mutable_node()) {
    const auto read = IsIdentity(node) ? uses.find(node.output(0)) : uses.end();
    const auto vector = read == uses.end() ? vectors.end() : vectors.find(node.input(0));
    if (vector == vectors.end() || !(AreStatistics(read->second) || vector->second.IsConstant())) {
      nodes.Add()->Swap(&node);
      continue;
    }
    bytes += vector->second.tensor->ByteSizeLong();
    if (bytes > kMaxCopies) return absl::InvalidArgumentError("[onnx] copies of initializers are above 64 MiB");
    ::onnx::TensorProto* own = graph->add_initializer();
    *own = *vector->second.tensor;
    own->set_name(node.output(0));
    // An Identity of the copy, further on, may need one as well.
    vectors[own->name()] = {own, vector->second.constant};
  }
  graph->mutable_node()->Swap(&nodes);
  return absl::OkStatus();
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
