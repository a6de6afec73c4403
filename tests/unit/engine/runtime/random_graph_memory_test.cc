// No two tensors of a plan that are alive at once share memory, whatever the graph.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/random_graph.h"
#include "tests/unit/engine/runtime/machine.h"
#include "tests/unit/engine/runtime/random_step.h"

namespace ampd::runtime {
namespace {

struct Extent {
  int first = 0;
  int last = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Whose memory a value shows: a view's is that of what it is a view of.
std::map<std::string, std::string> Roots(const ir::Graph& graph) {
  std::map<std::string, std::string> roots;
  for (const ir::Node& node : graph.nodes) {
    for (ir::ValueId v : node.outputs) {
      const std::string& name = graph.values[v].name;
      const std::string& from = graph.values[node.inputs[0]].name;
      const bool view = node.op == ir::OpKind::kReshape;
      EXPECT_EQ(roots.count(name), 0) << "two values are named " << name;
      roots[name] = !view ? name : roots.count(from) > 0 ? roots[from] : from;
    }
  }
  return roots;
}

// From the plan's steps alone: when each tensor in the arena is first and last used, and where it lies.
void ExpectNoOverlap(const ir::Graph& graph, const Plan& plan, const std::string& what) {
  std::map<std::string, std::string> roots = Roots(graph);
  std::map<std::string, Extent> extents;
  const auto touch = [&](const std::string& name, const PlannedTensor& t, int step) {
    if (t.space != Space::kArena) return;
    const int64_t bytes = NumElements(t.type.shape) * SizeOf(t.type.dtype);
    ASSERT_EQ(roots.count(name), 1) << name;
    const auto [it, inserted] = extents.insert({roots[name], {step, step, t.offset, t.offset + bytes}});
    EXPECT_EQ(it->second.begin, t.offset) << what << " " << name << " moved";
    it->second.last = step;
  };
  const int steps = static_cast<int>(plan.steps.size());
  std::set<std::string> overwritten;
  for (int s = 0; s < steps; ++s) {
    const PlanStep& step = plan.steps[s];
    for (const PlannedTensor& t : step.inputs) {
      EXPECT_EQ(overwritten.count(t.name), 0) << what << " " << step.name << " reads " << t.name;
      touch(t.name, t, s);
    }
    for (size_t o = 0; o < step.outputs.size(); ++o) {
      const int i = step.kernel->overwrites(static_cast<int>(o));
      if (i < 0 || step.inputs[i].space != Space::kArena || step.inputs[i].offset != step.outputs[o].offset) continue;
      const std::string memory = roots[step.inputs[i].name];
      for (const auto& [name, root] : roots) {
        if (root == memory) overwritten.insert(name);
      }
      for (auto& [name, root] : roots) {
        if (root == step.outputs[o].name) root = memory;
      }
    }
    for (const PlannedTensor& t : step.outputs) touch(t.name, t, s);
    if (const int64_t bytes = step.kernel->workspace_bytes(); bytes > 0) {
      extents["workspace of " + step.name] = {s, s, step.workspace_offset, step.workspace_offset + bytes};
    }
  }
  for (const auto& [name, t] : plan.outputs) touch(graph.values[graph.outputs.at(name)].name, t, steps);
  for (auto a = extents.begin(); a != extents.end(); ++a) {
    EXPECT_LE(a->second.end, plan.arena_bytes) << what << " " << a->first;
    for (auto b = std::next(a); b != extents.end(); ++b) {
      const Extent &x = a->second, &y = b->second;
      const bool apart = x.last < y.first || y.last < x.first || x.end <= y.begin || y.end <= x.begin;
      EXPECT_TRUE(apart) << what << ": " << a->first << " and " << b->first << " overlap";
    }
  }
}

class RandomGraphMemory : public ::testing::TestWithParam<Mode> {};

TEST_P(RandomGraphMemory, NothingAliveOverlaps) {
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, 40);
    const ir::Graph graph = StepOf(forward, GetParam(), Passes::kAll, passes::kTensorCorePadding);
    const Machine machine(graph, testing::RandomGraphInputs(graph, seed), 2);
    ExpectNoOverlap(graph, machine.plan(), "seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomGraphMemory, ::testing::ValuesIn(AllModes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::runtime
