#include "tests/bench/kernel_rows.h"

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/autodiff/differentiate.h"
#include "engine/core/status.h"
#include "tests/bench/kernel_runner.h"

namespace ampd::bench {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

// Of a device, between one wait and the next.
constexpr int kLaunches = 20;

}  // namespace

benchmark::Counter PerSecond(double amount) {
  return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

Rows& rows() {
  static Rows rows;
  return rows;
}

void Measure(const std::string& name, const NodeDesc& desc, int64_t index_below) {
  static std::set<std::string> names;
  if (!names.insert(name).second) return;
  benchmark::RegisterBenchmark(name.c_str(), [desc, index_below](benchmark::State& state) {
    const auto runner = KernelRunner::Make(desc, index_below, rows().device);
    // Twice, for the first launch may choose an algorithm.
    absl::Status status = runner.status();
    for (int i = 0; i < 2 && status.ok(); ++i) status = (*runner)->Launch(1);
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
    const int launches = rows().device != nullptr ? kLaunches : 1;
    for (auto _ : state) {
      if (!(*runner)->Launch(launches).ok()) return state.SkipWithError("Launch");
    }
    state.counters["FLOP/s"] = PerSecond((*runner)->cost().flops * launches);
    state.counters["B/s"] = PerSecond((*runner)->cost().bytes * launches);
  })->UseRealTime();
}

NodeDesc DescOf(const ir::Graph& graph, const ir::Node& node, const std::set<ir::ValueId>& weights) {
  NodeDesc desc{.op = node.op, .name = "bench", .attributes = node.attributes, .threads = rows().threads};
  for (ir::ValueId v : node.inputs) {
    desc.inputs.push_back(graph.type(v));
    desc.parameter_inputs.push_back(weights.count(v) > 0);
  }
  for (ir::ValueId v : node.outputs) desc.outputs.push_back(graph.type(v));
  desc.steps = node.steps;
  desc.results = node.results;
  return desc;
}

absl::Status MeasureUse(const std::string& sizes, const Use& use) {
  ir::Graph graph;
  std::vector<ir::ValueId> inputs, leaves;
  std::set<ir::ValueId> weights;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    inputs.push_back(graph.AddInput(absl::StrCat("x", i), use.inputs[i]));
    if (IsFloat(use.inputs[i].dtype)) leaves.push_back(inputs.back());
    if (use.weights.count(static_cast<int>(i)) > 0) weights.insert(inputs.back());
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> y,
                        ops::Emit(&graph, {.op = use.op, .name = "y", .inputs = inputs, .attributes = use.attributes}));
  const std::string suffix = absl::StrCat("/", sizes, "/", DTypeName(use.inputs[0].dtype));
  Measure(absl::StrCat(ir::OpName(use.op), suffix), DescOf(graph, graph.nodes[0], weights), use.index_below);
  if (!use.gradients || ops::GetOpDef(use.op).gradient == nullptr) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(autodiff::AddGradients(&graph, y[0], leaves).status());
  for (const ir::Node& node : graph.nodes) {
    const bool seed = node.op == OpKind::kBroadcastTo || node.op == OpKind::kCast || node.inputs.empty();
    if (node.name == "y" || seed || ops::GetOpDef(node.op).is_view) continue;
    std::string name(ir::OpName(node.op));
    if (node.op == use.op) absl::StrAppend(&name, "_as_gradient", node.attributes.Bool("transpose_a") ? "_of_b" : "");
    Measure(name + suffix, DescOf(graph, node, weights), use.index_below);
  }
  return absl::OkStatus();
}

}  // namespace ampd::bench
