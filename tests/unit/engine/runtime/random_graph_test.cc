// Properties that hold of any graph: passes change no result, and no two tensors alive at once share memory.
#include <gtest/gtest.h>

#include <map>

#include "engine/autodiff/differentiate.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fuse.h"
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

ir::Graph Built(ir::Graph forward, DType compute, bool optimised) {
  passes::Pipeline pipeline;
  pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, {.compute = compute}); })
      .Add("differentiate",
           [](ir::Graph g) {
             const ir::ValueId loss = g.outputs.at("loss");
             return autodiff::Differentiate(std::move(g), loss);
           })
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

struct Extent {
  int first = 0;
  int last = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// From the plan's steps alone: when each tensor in the arena is first and last used, and where it lies. A view's
// tensors share their root's place.
void ExpectNoOverlap(const Plan& plan, const std::string& what) {
  std::map<std::pair<int64_t, std::string>, Extent> extents;
  const auto touch = [&](const PlannedTensor& t, int step) {
    if (t.space != Space::kArena) return;
    const int64_t bytes = NumElements(t.type.shape) * SizeOf(t.type.dtype);
    const auto [it, inserted] = extents.insert({{t.offset, t.name}, {step, step, t.offset, t.offset + bytes}});
    it->second.last = step;
  };
  const int steps = static_cast<int>(plan.steps.size());
  for (int s = 0; s < steps; ++s) {
    const PlanStep& step = plan.steps[s];
    for (const PlannedTensor& t : step.inputs) touch(t, s);
    for (const PlannedTensor& t : step.outputs) touch(t, s);
    if (const int64_t bytes = step.kernel->workspace_bytes(); bytes > 0) {
      extents[{step.workspace_offset, "workspace of " + step.name}] = {s, s, step.workspace_offset,
                                                                       step.workspace_offset + bytes};
    }
  }
  for (const auto& [ka, a] : extents) {
    EXPECT_LE(a.end, plan.arena_bytes) << what << " " << ka.second;
    for (const auto& [kb, b] : extents) {
      if (ka >= kb || a.last < b.first || b.last < a.first || a.end <= b.begin || b.end <= a.begin) continue;
      // A reshape's input and output are one memory.
      if (a.begin == b.begin && a.end == b.end) continue;
      ADD_FAILURE() << what << ": " << ka.second << " and " << kb.second << " overlap";
    }
  }
}

TEST(RandomGraphs, NothingAliveOverlaps) {
  for (uint64_t seed = 1; seed <= kGraphs; ++seed) {
    for (DType mode : {DType::kF32, DType::kF16}) {
      const ir::Graph forward = testing::RandomForwardGraph(seed, 3 * kNodes);
      const ir::Graph graph = Built(forward, mode, true);
      Machine machine(graph, testing::RandomGraphInputs(forward, seed), 2);
      ExpectNoOverlap(machine.plan(), "seed " + std::to_string(seed));
    }
  }
}

}  // namespace
}  // namespace ampd::runtime
