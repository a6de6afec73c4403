// Properties that hold of any graph in any mode: passes change no meaning, and no more bits than they say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/ir/printer.h"
#include "tests/support/random_graph.h"
#include "tests/unit/engine/runtime/machine.h"
#include "tests/unit/engine/runtime/random_step.h"

namespace ampd::runtime {
namespace {

constexpr int kNodes = 20;

class RandomGraphs : public ::testing::TestWithParam<Mode> {
 protected:
  static std::string Where(uint64_t seed) { return GetParam().name + " seed " + std::to_string(seed); }
  static ir::Graph Step(const ir::Graph& forward, Passes passes) { return StepOf(forward, GetParam(), passes); }
};

RefTensor Reference(TensorView view) {
  RefTensor t{view.shape, {}};
  for (int64_t i = 0; i < view.size(); ++i) t.data.push_back(view.as<float>()[i]);
  return t;
}

// Every bit but the sign of a zero, which a sum that begins with 0 loses.
bool AreSame(const float* a, const float* b, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0 && !(a[i] == 0 && b[i] == 0)) return false;
  }
  return true;
}

// What a step leaves behind: losses, gradients, and states that wait to be committed.
void ExpectSameBits(Machine& a, Machine& b, const std::string& where) {
  const TensorView la = *a.executor().Output("losses"), lb = *b.executor().Output("losses");
  ASSERT_EQ(la.bytes(), lb.bytes()) << where;
  EXPECT_EQ(std::memcmp(la.data, lb.data, la.bytes()), 0) << where << " losses";
  const auto elements = static_cast<size_t>(a.memory().layout().arena_elements());
  EXPECT_TRUE(AreSame(a.memory().gradients(), b.memory().gradients(), elements)) << where << " gradients";
  const auto states = static_cast<size_t>(a.memory().layout().state_bytes());
  EXPECT_EQ(std::memcmp(a.memory().pending_state(), b.memory().pending_state(), states), 0) << where << " states";
}

// The 2-norm of the difference over that of `expected`, over all parameters; of gradients below 1/100 over that.
double Distance(const std::vector<RefTensor>& expected, Machine& machine) {
  double difference = 0, size = 1e-4;
  for (size_t p = 0; p < expected.size(); ++p) {
    const TensorView actual = machine.memory().Gradient(static_cast<int32_t>(p));
    for (int64_t i = 0; i < expected[p].size(); ++i) {
      difference += std::pow(expected[p].data[i] - actual.as<float>()[i], 2);
      size += std::pow(expected[p].data[i], 2);
    }
  }
  return std::sqrt(difference / size);
}

std::vector<RefTensor> Gradients(Machine& machine) {
  std::vector<RefTensor> gradients;
  for (size_t p = 0; p < machine.memory().layout().parameters().size(); ++p) {
    gradients.push_back(Reference(machine.memory().Gradient(static_cast<int32_t>(p))));
  }
  return gradients;
}

// Exactly, but for the order of double's own sums.
TEST_P(RandomGraphs, NoPassChangesTheMeaning) {
  uint64_t fused = 0;
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    const ir::Graph plain = Step(forward, Passes::kNone), optimised = Step(forward, Passes::kAll);
    for (const ir::Node& node : optimised.nodes) fused += node.op == ir::OpKind::kFused;
    const GraphInputs in = testing::RandomGraphInputs(plain, seed);
    const GraphResults expected = testing::RunGraphReference(plain, in);
    const GraphResults actual = testing::RunGraphReference(optimised, in);
    const auto compare = [&](const RefTensor& a, const RefTensor& b, const std::string& what) {
      ASSERT_EQ(a.shape, b.shape) << Where(seed) << what;
      for (int64_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a.data[i], b.data[i], 1e-9 * (1 + Largest(a))) << Where(seed) << what << "\n"
                                                                   << ir::GraphString(forward);
      }
    };
    compare(expected.outputs.at("losses"), actual.outputs.at("losses"), " losses");
    for (size_t p = 0; p < expected.gradients.size(); ++p) {
      compare(expected.gradients[p], actual.gradients[p], " gradient of p" + std::to_string(p));
    }
  }
  EXPECT_GT(fused, RandomGraphCount());
}

TEST_P(RandomGraphs, RemovingDeadNodesAndPublishingChangeNoBit) {
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    const ir::Graph plain = Step(forward, Passes::kNone);
    const GraphInputs in = testing::RandomGraphInputs(plain, seed);
    Machine a(plain, in, 1), tidied(Step(forward, Passes::kTidied), in, 1),
        published(Step(forward, Passes::kPublished), in, 1);
    for (Machine* machine : {&a, &tidied, &published}) machine->Run(in.step);
    ExpectSameBits(a, tidied, Where(seed) + " dead nodes,");
    ExpectSameBits(a, published, Where(seed) + " published,");
  }
}

// How far from each other two runs may be whose values differ in their last places: losses, absolutely; gradients, by
// Distance(), at worst (a relu may open) and in nine graphs of ten.
struct Tolerance {
  double losses, worst, usual;
};

Tolerance RoundingTolerance(const Mode& mode) {
  if (mode.compute.dtype == DType::kF32) return {0, 0, 0};
  if (!IsF8(mode.compute.dtype)) {
    const double u = UnitRoundoff(mode.compute.dtype);
    return {8 * u, 32 * u, 3 * u};
  }
  // A value near the middle of two codes may take either, a sixteenth apart; most stay.
  return {UnitRoundoff(DType::kF8E4M3), 0.5, 3 * UnitRoundoff(DType::kBF16)};
}

// A gtest failure where results of the two are farther apart than `tolerance`; true where farther than usual.
bool IsFar(const ir::Graph& plain, const ir::Graph& other, uint64_t seed, const Tolerance& tolerance) {
  const std::string where = "seed " + std::to_string(seed);
  const GraphInputs in = testing::RandomGraphInputs(plain, seed);
  Machine a(plain, in, 2), b(other, in, 2);
  a.Run(in.step);
  b.Run(in.step);
  if (tolerance.worst == 0) ExpectSameBits(a, b, where);
  const TensorView losses = *b.executor().Output("losses");
  EXPECT_LE(Deviation(Reference(*a.executor().Output("losses")), losses, 1), tolerance.losses) << where;
  const double distance = Distance(Gradients(a), b);
  EXPECT_LE(distance, tolerance.worst) << where;
  return distance > tolerance.usual;
}

// Padding adds zeros to sums, which may be taken in another order then.
TEST_P(RandomGraphs, PaddingKeepsTheResults) {
  const Tolerance tolerance = RoundingTolerance(GetParam());
  uint64_t far = 0, padded = 0;
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    const ir::Graph plain = Step(forward, Passes::kPublished),
                    wide = StepOf(forward, GetParam(), Passes::kPublished, passes::kTensorCorePadding);
    padded += wide.nodes.size() != plain.nodes.size();
    far += IsFar(plain, wide, seed, tolerance);
  }
  EXPECT_LE(far, RandomGraphCount() / 10);
  EXPECT_EQ(padded > RandomGraphCount() / 4, tolerance.worst > 0) << padded;
}

TEST_P(RandomGraphs, WhatNeedNotCrossMemoryKeepsEveryBit) {
  int rounded = 0;
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    EXPECT_FALSE(IsFar(Step(forward, Passes::kPublished), Step(forward, Passes::kExact), seed, {0, 0, 0}));
    const auto padded = [&](Passes passes) { return StepOf(forward, GetParam(), passes, passes::kTensorCorePadding); };
    const ir::Graph exact = padded(Passes::kExact);
    EXPECT_FALSE(IsFar(padded(Passes::kPublished), exact, seed, {0, 0, 0}));
    for (const ir::Node& node : exact.nodes) rounded += node.op == ir::OpKind::kPad && node.attributes.Has("dtype");
  }
  EXPECT_EQ(rounded > 0, GetParam().compute.dtype != DType::kF32);
}

// Fusing saves the roundings between steps, so the f32 modes keep every bit and others stay within roundings.
TEST_P(RandomGraphs, FusingKeepsTheResults) {
  const Tolerance tolerance = RoundingTolerance(GetParam());
  uint64_t far = 0;
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = testing::RandomForwardGraph(seed, kNodes);
    const ir::Graph plain = Step(forward, Passes::kPublished), optimised = Step(forward, Passes::kAll);
    far += IsFar(plain, optimised, seed, tolerance);
  }
  EXPECT_LE(far, RandomGraphCount() / 10);
}

TEST_P(RandomGraphs, AgreeWithFloat64) {
  const passes::ComputeType compute = GetParam().compute;
  const bool f32 = compute.dtype == DType::kF32 && !compute.tf32;
  const double u = compute.tf32 ? 0x1p-11 : UnitRoundoff(compute.dtype);
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph graph = Step(testing::RandomForwardGraph(seed, kNodes), Passes::kAll);
    const GraphInputs in = testing::RandomGraphInputs(graph, seed);
    const GraphResults expected = testing::RunGraphReference(graph, in);
    Machine machine(graph, in, 2);
    machine.Run(in.step);
    const TensorView losses = *machine.executor().Output("losses");
    EXPECT_LE(Deviation(expected.outputs.at("losses"), losses, 1), 8 * u) << Where(seed);
    // Where 10 bits or fewer are kept, a maximum that ties or nearly so may send its gradient elsewhere.
    if (f32) {
      EXPECT_LE(Distance(expected.gradients, machine), 256 * u) << Where(seed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomGraphs, ::testing::ValuesIn(AllModes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::runtime
