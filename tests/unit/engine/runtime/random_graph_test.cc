// Properties that hold of any graph: passes change no result, and no two tensors alive at once share memory.
#include <gtest/gtest.h>

#include <map>

#include "engine/autodiff/differentiate.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fuse.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/split_norms.h"
#include "tests/support/random_graph.h"
#include "tests/support/small_networks.h"
#include "tests/unit/engine/runtime/machine.h"

namespace ampd::runtime {
namespace {

constexpr int kGraphs = 60;
constexpr int kNodes = 14;

ir::Graph Built(ir::Graph forward, DType compute, bool optimised, const passes::PaddingPolicy& padding = {}) {
  passes::Pipeline pipeline;
  pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, {.compute = compute}); })
      .Add("differentiate",
           [](ir::Graph g) {
             const ir::ValueId loss = g.outputs.at("loss");
             return autodiff::Differentiate(std::move(g), loss);
           })
      .Add("pad_for_tensor_cores", [&](ir::Graph g) { return passes::PadForTensorCores(std::move(g), padding); })
      .Add("publish_parameters", passes::PublishParameters);
  if (optimised) {
    const auto backend = MakeCpuBackend(1);
    const auto can_fuse = [&](ir::OpKind op) { return backend->CanFuse(op); };
    pipeline.Add("dead_nodes", passes::RemoveDeadNodes);
    pipeline.Add("split_norms", [&](ir::Graph g) { return passes::SplitNorms(std::move(g), can_fuse); });
    pipeline.Add("fuse", [&](ir::Graph g) { return passes::Fuse(std::move(g), can_fuse); });
    auto graph = pipeline.Run(std::move(forward));
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  auto graph = pipeline.Run(std::move(forward));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// One element after the other: the same bits.
void ExpectSameBits(TensorView a, TensorView b, const std::string& what) {
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << what;
}

RefTensor Reference(TensorView view) {
  RefTensor t{view.shape, {}};
  for (int64_t i = 0; i < view.size(); ++i) t.data.push_back(view.as<float>()[i]);
  return t;
}

TEST(RandomGraphs, PassesChangeNoBitInFp32AndAgreeWithFloat64) {
  int fused = 0;
  for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
    const std::string what = "seed " + std::to_string(seed);
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    const ir::Graph plain = Built(forward, DType::kF32, false), optimised = Built(forward, DType::kF32, true);
    for (const ir::Node& node : optimised.nodes) fused += node.op == ir::OpKind::kFused;
    const GraphInputs in = testing::RandomGraphInputs(forward, seed);
    const GraphResults expected = testing::RunGraphReference(plain, in);
    const GraphResults fused_expected = testing::RunGraphReference(optimised, in);
    EXPECT_NEAR(fused_expected.outputs.at("loss").data[0], expected.outputs.at("loss").data[0], 1e-12) << what;
    Machine a(plain, in, 2), b(optimised, in, 2);
    a.Run(in.step);
    b.Run(in.step);
    double scale = 1e-6;
    for (const RefTensor& gradient : expected.gradients) scale = std::max(scale, Largest(gradient));
    for (int32_t p = 0; p < static_cast<int32_t>(expected.gradients.size()); ++p) {
      ExpectSameBits(a.memory().Gradient(p), b.memory().Gradient(p), what);
      // A maximum that ties or nearly so sends its gradient elsewhere in float64, hence the bound is loose.
      EXPECT_LE(Deviation(expected.gradients[p], b.memory().Gradient(p), scale), 1e-3) << what << " p" << p;
    }
    EXPECT_LE(Deviation(expected.outputs.at("losses"), *b.executor().Output("losses")), 1e-4) << what;
  }
  EXPECT_GT(fused, kGraphs);
}

TEST(RandomGraphs, PassesKeepResultsInSixteenBits) {
  for (DType mode : {DType::kF16, DType::kBF16}) {
    for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
      const std::string what = std::string(DTypeName(mode)) + " seed " + std::to_string(seed);
      const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
      const ir::Graph plain = Built(forward, mode, false), optimised = Built(forward, mode, true);
      const GraphInputs in = testing::RandomGraphInputs(forward, seed);
      Machine a(plain, in, 1), b(optimised, in, 1);
      a.Run(in.step);
      b.Run(in.step);
      const RefTensor losses = Reference(*a.executor().Output("losses"));
      EXPECT_LE(Deviation(losses, *b.executor().Output("losses"), 1), 40 * UnitRoundoff(mode)) << what;
    }
  }
}

// Channels of one to nine, padded to eight or sixteen where that pays: sums get zeros, and may be rounded elsewhere.
TEST(RandomGraphs, PaddingKeepsResultsInSixteenBits) {
  int products = 0;
  for (DType mode : {DType::kF16, DType::kBF16}) {
    for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
      const std::string what = std::string(DTypeName(mode)) + " seed " + std::to_string(seed);
      const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
      const ir::Graph plain = Built(forward, mode, false);
      const GraphInputs in = testing::RandomGraphInputs(forward, seed);
      Machine a(plain, in, 1);
      a.Run(in.step);
      const RefTensor losses = Reference(*a.executor().Output("losses"));
      double scale = 1e-6;
      for (size_t p = 0; p < plain.parameters.size(); ++p) {
        scale = std::max(scale, Largest(Reference(a.memory().Gradient(static_cast<int32_t>(p)))));
      }
      for (bool optimised : {false, true}) {
        const ir::Graph padded = Built(forward, mode, optimised, passes::kTensorCorePadding);
        for (const ir::Node& node : padded.nodes) products += node.op == ir::OpKind::kPad;
        Machine b(padded, in, 1);
        b.Run(in.step);
        EXPECT_LE(Deviation(losses, *b.executor().Output("losses"), 1), 40 * UnitRoundoff(mode)) << what;
        if (optimised) continue;  // which rounds less
        for (size_t p = 0; p < plain.parameters.size(); ++p) {
          const auto slot = static_cast<int32_t>(p);
          const RefTensor expected = Reference(a.memory().Gradient(slot));
          // A maximum that ties or nearly so sends its gradient elsewhere.
          EXPECT_LE(Deviation(expected, b.memory().Gradient(slot), scale), 0.1) << what << " p" << p;
        }
      }
    }
  }
  EXPECT_GT(products, kGraphs);
}

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
  for (int s = 0; s < steps; ++s) {
    const PlanStep& step = plan.steps[s];
    for (const PlannedTensor& t : step.inputs) touch(t.name, t, s);
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

TEST(RandomGraphs, NothingAliveOverlaps) {
  for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
    for (DType mode : {DType::kF32, DType::kF16}) {
      const ir::Graph forward = testing::RandomForwardGraph(seed, 3 * kNodes);
      const ir::Graph graph = Built(forward, mode, true, passes::kTensorCorePadding);
      Machine machine(graph, testing::RandomGraphInputs(forward, seed), 2);
      ExpectNoOverlap(graph, machine.plan(), "seed " + std::to_string(seed));
    }
  }
}

}  // namespace
}  // namespace ampd::runtime
