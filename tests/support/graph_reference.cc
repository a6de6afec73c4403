#include "tests/support/graph_reference.h"

#include <algorithm>
#include <utility>

namespace ampd::testing {
namespace {

RefTensor Zeros(const Shape& shape) { return {shape, std::vector<double>(NumElements(shape), 0.0)}; }

runtime::NodeDesc Describe(const ir::Graph& graph, const ir::Node& node) {
  runtime::NodeDesc desc{.op = node.op, .name = node.name, .attributes = node.attributes};
  desc.steps = node.steps;
  desc.results = node.results;
  for (ir::ValueId v : node.inputs) desc.inputs.push_back(graph.type(v));
  for (ir::ValueId v : node.outputs) desc.outputs.push_back(graph.type(v));
  return desc;
}

// A fused node or a region, step by step. Casts round nothing here, as elsewhere in a reference graph.
std::vector<RefTensor> RunFused(const ir::Graph& graph, const ir::Node& node, std::vector<RefTensor> values,
                                const runtime::StepState& state) {
  const Shape& shape = graph.type(node.outputs[0]).shape;
  const size_t inputs = values.size();
  for (const ir::FusedStep& step : node.steps) {
    runtime::NodeDesc desc{.op = step.op, .name = node.name, .attributes = step.attributes};
    std::vector<RefTensor> operands;
    for (int32_t operand : step.operands) {
      operands.push_back(values[operand]);
      desc.inputs.push_back({DType::kF32, values[operand].shape});
    }
    desc.outputs = {{step.dtype, shape}};
    const bool cast = step.op == ir::OpKind::kCast;
    values.push_back(cast ? operands[0] : ReferenceOp(desc, operands, state)[0]);
  }
  std::vector<RefTensor> results;
  for (int32_t result : node.results) results.push_back(values[inputs + static_cast<size_t>(result)]);
  return results;
}

void LoadValues(const ir::Graph& graph, const GraphInputs& in, GraphResults* results) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const ir::Value& value = graph.values[v];
    RefTensor& slot = results->values[v];
    switch (value.kind) {
      case ir::ValueKind::kInput:
        slot = in.inputs.at(value.name);
        break;
      case ir::ValueKind::kParameter:
      case ir::ValueKind::kPublished:
        slot = in.parameters.at(value.slot);
        break;
      case ir::ValueKind::kState:
        slot = in.states.at(value.slot);
        break;
      case ir::ValueKind::kConstant:
        slot = value.data == nullptr ? Zeros(value.type.shape) : FromTensor(value.data->view());
        break;
      case ir::ValueKind::kLossSeed:
        slot = {{}, {in.step.loss_seed}};
        break;
      case ir::ValueKind::kActivation:
        break;
    }
  }
}

}  // namespace

GraphResults RunGraphReference(const ir::Graph& graph, const GraphInputs& in) {
  GraphResults results;
  results.values.resize(graph.values.size());
  for (const ir::Persistent& p : graph.parameters) results.gradients.push_back(Zeros(p.type.shape));
  LoadValues(graph, in, &results);
  for (const ir::Node& node : graph.nodes) {
    if (node.op == ir::OpKind::kBatchNormUpdate || node.op == ir::OpKind::kAmaxUpdate) continue;
    if (node.op == ir::OpKind::kAccumulateGrad) {
      RefTensor& sum = results.gradients[graph.values[node.inputs[1]].slot];
      const RefTensor& gradient = results.values[node.inputs[0]];
      if (node.attributes.Bool("overwrite")) std::fill(sum.data.begin(), sum.data.end(), 0);
      for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += gradient.data[i];
      continue;
    }
    if (node.op == ir::OpKind::kReshape || node.op == ir::OpKind::kCast) {
      results.values[node.outputs[0]] = {graph.type(node.outputs[0]).shape, results.values[node.inputs[0]].data};
      continue;
    }
    std::vector<RefTensor> inputs;
    for (ir::ValueId v : node.inputs) inputs.push_back(results.values[v]);
    const bool has_steps = node.op == ir::OpKind::kFused || node.op == ir::OpKind::kRegion;
    std::vector<RefTensor> outputs = has_steps ? RunFused(graph, node, std::move(inputs), in.step)
                                               : ReferenceOp(Describe(graph, node), inputs, in.step);
    for (size_t i = 0; i < outputs.size(); ++i) results.values[node.outputs[i]] = std::move(outputs[i]);
  }
  for (const auto& [name, v] : graph.outputs) results.outputs[name] = results.values[v];
  return results;
}

}  // namespace ampd::testing
