// Whole plans on the CPU backend against float64, and what the planner promises about memory.
#include "engine/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/autodiff/differentiate.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/half.h"
#include "engine/ir/zeros.h"
#include "engine/ops/op_def.h"
#include "engine/passes/overwrite_gradients.h"
#include "engine/passes/precision.h"
#include "engine/passes/widen_gradients.h"
#include "engine/runtime/plan.h"
#include "tests/support/small_networks.h"
#include "tests/unit/engine/runtime/machine.h"

namespace ampd::runtime {
namespace {

using testing::GraphInputs;
using testing::GraphResults;
using testing::RefTensor;
using testing::SmallNetwork;

struct Mode {
  const char* precision;
  DType dtype;
};
constexpr Mode kModes[] = {{"mode: FP32", DType::kF32}, {"mode: FP16", DType::kF16}, {"mode: BF16", DType::kBF16}};

TEST(Executor, NetworksAgreeWithFloat64InEveryMode) {
  for (const Mode& mode : kModes) {
    // Each of the dozen or so rounded stages of these networks adds at most a few unit roundoffs.
    const double bound = 40 * UnitRoundoff(mode.dtype);
    for (const SmallNetwork& network : testing::SmallNetworks()) {
      const models::Model model = testing::BuildSmallNetwork(network, mode.precision, 8);
      const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
      const GraphResults expected = testing::RunGraphReference(model.phases[0].train, in);
      // A bias before batch norm has no gradient but rounding errors, so each is held against the network's largest
      // too.
      double scale = 0;
      for (const RefTensor& gradient : expected.gradients) scale = std::max(scale, 0.1 * Largest(gradient));
      for (int threads : {1, 2}) {
        Machine machine(model.phases[0].train, in, threads);
        machine.Run(in.step);
        EXPECT_LE(Deviation(expected.outputs.at("losses"), *machine.executor().Output("losses")), bound)
            << network.name << " " << mode.precision;
        for (size_t p = 0; p < expected.gradients.size(); ++p) {
          EXPECT_LE(Deviation(expected.gradients[p], machine.memory().Gradient(static_cast<int32_t>(p)), scale), bound)
              << network.name << " " << mode.precision << " " << model.phases[0].train.parameters[p].name;
        }
      }
      const GraphResults eval = testing::RunGraphReference(model.eval, in);
      Machine machine(model.eval, in, 1);
      machine.Run(in.step);
      EXPECT_LE(Deviation(eval.outputs.at("logits"), *machine.executor().Output("logits")), bound) << network.name;
    }
  }
}

// Which output a label means must not depend on the order of images in memory.
TEST(Executor, AFlattenedImageGoesToTheLossInTorchOrder) {
  const SmallNetwork network = {
      "flat",
      "layers { conv2d { filters: 2 kernel: 1 bias: false } } layers { flatten {} } layers { relu {} } "
      "loss { mean_squared_error {} }",
      {.input_shape = {3, 2, 2}, .target_features = 12}};
  const models::Model model = testing::BuildSmallNetwork(network, "mode: FP32", 2);
  GraphInputs in = testing::RandomInputs(network, model.eval);
  in.parameters[0].data = {1, 0, 0, 1};
  for (size_t i = 0; i < 24; ++i) in.inputs["x"].data[i] = static_cast<double>(i);
  Machine machine(model.eval, in, 1);
  machine.Run(in.step);
  const TensorView logits = *machine.executor().Output("logits");
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t c = 0; c < 2; ++c) {
      for (int64_t pixel = 0; pixel < 6; ++pixel) {
        EXPECT_EQ(logits.as<float>()[n * 12 + c * 6 + pixel], static_cast<float>(n * 12 + pixel * 2 + c));
      }
    }
  }
}

// In fp16 the sum would be 2048.
TEST(Executor, UsesOfAParametersCopyAddUpInFp32) {
  ir::Graph g;
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {1, 1}}});
  const auto emit = [&g](ir::OpKind op, const char* name, std::vector<ir::ValueId> inputs) {
    auto y = ops::Emit(&g, {.op = op, .name = name, .inputs = std::move(inputs)});
    EXPECT_TRUE(y.ok()) << y.status();
    return (*y)[0];
  };
  GraphInputs in;
  std::vector<ir::ValueId> products;
  for (const auto& [name, value] : {std::pair{"a", 2048.0}, {"b", 1.0}}) {
    in.inputs[name] = {{1, 1}, {value}};
    const ir::ValueId x = g.AddInput(name, {DType::kF32, {1, 1}});
    products.push_back(emit(ir::OpKind::kMatmul, absl::StrCat("times_", name).c_str(), {x, w}));
  }
  g.outputs["loss"] = emit(ir::OpKind::kReduceSum, "loss", {emit(ir::OpKind::kAdd, "add", products)});
  in.parameters = {{{1, 1}, {0.5}}};
  auto half = passes::ApplyPrecision(g, {.compute = DType::kF16});
  ASSERT_TRUE(half.ok()) << half.status();
  const ir::ValueId loss = half->outputs.at("loss");
  auto step = autodiff::Differentiate(*std::move(half), loss);
  ASSERT_TRUE(step.ok()) << step.status();
  Machine machine(*step, in, 1);
  machine.Run({});
  EXPECT_EQ(*machine.memory().Gradient(0).as<float>(), 2049);
}

TEST(Executor, EqualThreadsGiveEqualBits) {
  for (const Mode& mode : kModes) {
    for (const SmallNetwork& network : testing::SmallNetworks()) {
      const models::Model model = testing::BuildSmallNetwork(network, mode.precision, 8);
      const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
      Machine a(model.phases[0].train, in, 2), b(model.phases[0].train, in, 2);
      a.Run(in.step);
      b.Run(in.step);
      b.Run(in.step);
      const int64_t bytes = a.memory().layout().arena_elements() * static_cast<int64_t>(sizeof(float));
      EXPECT_EQ(std::memcmp(a.memory().gradients(), b.memory().gradients(), bytes), 0)
          << network.name << " " << mode.precision;
    }
  }
}

// Odd extents, so that the padding of blocked layouts lies in the arena too.
TEST(Executor, NothingReadsWhatAnEarlierRunLeft) {
  std::vector<SmallNetwork> networks = testing::SmallNetworks();
  networks.push_back({"odd convolutions",
                      R"pb(layers { conv2d { filters: 17 kernel: 3 activation: RELU } }
                           layers { conv2d { filters: 33 kernel: 3 dilation: 2 pads: 2 activation: RELU } }
                           layers { conv_transpose2d { filters: 19 kernel: 3 stride: 2 } }
                           layers { conv2d { filters: 21 kernel: 1 } }
                           layers { global_avg_pool {} }
                           layers { dense { units: 3 } }
                           loss { softmax_cross_entropy {} })pb",
                      {.input_shape = {9, 7, 5}, .classes = 3}});
  // Large enough for other layouts of the image and of the result.
  networks.push_back({"a large odd convolution",
                      R"pb(layers { conv2d { filters: 250 kernel: 1 } }
                           layers { conv2d { filters: 243 kernel: 3 activation: RELU } }
                           layers { global_avg_pool {} }
                           layers { dense { units: 3 } }
                           loss { softmax_cross_entropy {} })pb",
                      {.input_shape = {7, 6, 2}, .classes = 3}});
  networks.push_back({"odd products",
                      R"pb(layers { dense { units: 35 } }
                           layers { multi_head_attention { heads: 5 } }
                           layers { lstm { units: 13 } }
                           layers { dense { units: 31 } }
                           layers { gru { units: 7 output: LAST_STEP } }
                           layers { dense { units: 3 } }
                           loss { softmax_cross_entropy {} })pb",
                      {.input_shape = {11, 9}, .classes = 3}});
  for (const char* mode : {"mode: FP32", "mode: TF32", "mode: FP16", "mode: BF16", "mode: FP8"}) {
    for (const SmallNetwork& network : networks) {
      const models::Model model = testing::BuildSmallNetwork(network, mode, 7);
      const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
      for (int threads : {1, 2}) {
        Machine machine(model.phases[0].train, in, threads);
        const int64_t bytes = machine.memory().layout().arena_elements() * static_cast<int64_t>(sizeof(float));
        machine.Run(in.step);
        const std::string first(reinterpret_cast<const char*>(machine.memory().gradients()), bytes);
        machine.Poison();
        machine.Run(in.step);
        EXPECT_EQ(std::memcmp(machine.memory().gradients(), first.data(), bytes), 0)
            << network.name << " " << mode << " " << threads;
      }
    }
  }
}

TEST(Executor, GradientsAddUpOverMicroBatches) {
  const SmallNetwork network = testing::SmallNetworks()[1];
  const models::Model model = testing::BuildSmallNetwork(network, "mode: FP32", 8);
  const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
  Machine once(model.phases[0].train, in, 1), twice(model.phases[0].train, in, 1);
  once.Run(in.step);
  twice.Run(in.step);
  ASSERT_TRUE(twice.executor().Run(in.step).ok());
  for (int64_t i = 0; i < once.memory().layout().arena_elements(); ++i) {
    EXPECT_EQ(twice.memory().gradients()[i], 2 * once.memory().gradients()[i]);
  }
}

TEST(Executor, RunningStatisticsStayPendingUntilCommitted) {
  const SmallNetwork network = testing::SmallNetworks()[2];
  const models::Model model = testing::BuildSmallNetwork(network, "mode: FP32", 8);
  const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
  Machine machine(model.phases[0].train, in, 1);
  const auto committed = [&] { return std::string(machine.memory().state(), machine.memory().layout().state_bytes()); };
  const std::string before = committed();
  machine.Run(in.step);
  EXPECT_EQ(committed(), before);
  EXPECT_TRUE(machine.memory().CommitState().ok());
  EXPECT_NE(committed(), before);
  EXPECT_EQ(*machine.memory().State(2).as<int64_t>(), static_cast<int64_t>(in.states[2].data[0]) + 1);
}

TEST(Executor, HookSeesEveryStepAndCanEndTheRun) {
  const SmallNetwork network = testing::SmallNetworks()[0];
  const models::Model model = testing::BuildSmallNetwork(network, "mode: FP16", 8);
  const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
  Machine machine(model.phases[0].train, in, 1);
  size_t seen = 0;
  machine.Run(in.step, [&](const PlanStep& step, absl::Span<const TensorView> outputs) {
    EXPECT_FALSE(outputs.empty() && step.op != ir::OpKind::kBatchNormUpdate) << step.name;
    ++seen;
    return absl::OkStatus();
  });
  EXPECT_EQ(seen, machine.plan().steps.size());
  EXPECT_EQ(
      machine.executor().Run(in.step, [](const PlanStep&, auto) { return absl::CancelledError("enough"); }).code(),
      absl::StatusCode::kCancelled);
}

TEST(Executor, MissingInputsAndNames) {
  const SmallNetwork network = testing::SmallNetworks()[0];
  const models::Model model = testing::BuildSmallNetwork(network, "mode: FP32", 8);
  const GraphInputs in = testing::RandomInputs(network, model.phases[0].train);
  Machine machine(model.phases[0].train, in, 1);
  EXPECT_EQ(machine.executor().BindInput("nothing", nullptr).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(machine.executor().Output("nothing").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(machine.executor().BindInput("x", nullptr).ok());
  EXPECT_EQ(machine.executor().Run(in.step).code(), absl::StatusCode::kFailedPrecondition);
}

// An input, a constant and a parameter as results, each through a view, beside one that a kernel computes.
TEST(Executor, ResultsMayBeWhatNoKernelWrites) {
  ir::Graph graph;
  const ir::ValueId x = graph.AddInput("x", {DType::kF32, {2, 2}});
  auto data = std::make_shared<Tensor>(DType::kF32, Shape{4});
  for (int i = 0; i < 4; ++i) data->as<float>()[i] = static_cast<float>(10 + i);
  const ir::ValueId c = graph.AddConstant("c", data);
  const ir::ValueId p = graph.AddParameter({.name = "p", .type = {DType::kF32, {4}}});
  const auto emit = [&](ir::OpKind op, std::string name, std::vector<ir::ValueId> inputs, ir::Attributes attributes) {
    return (*ops::Emit(&graph, {.op = op, .name = name, .inputs = inputs, .attributes = attributes}))[0];
  };
  const ir::Attributes flat{{"shape", std::vector<int64_t>{4}}};
  const ir::ValueId x4 = emit(ir::OpKind::kReshape, "x4", {x}, flat);
  const ir::ValueId sum = emit(ir::OpKind::kAdd, "sum", {x4, c}, {});
  graph.outputs = {{"x", x}, {"x4", x4}, {"c", c}, {"p", p}, {"sum", sum}};
  ASSERT_TRUE(ops::VerifyGraph(graph).ok()) << ops::VerifyGraph(graph);
  GraphInputs in;
  in.inputs["x"] = {{2, 2}, {1, 2, 3, 4}};
  in.parameters = {{{4}, {5, 6, 7, 8}}};
  Machine machine(graph, in, 1);
  machine.Run(in.step);
  const GraphResults expected = testing::RunGraphReference(graph, in);
  for (const auto& [name, v] : graph.outputs) {
    const TensorView result = *machine.executor().Output(name);
    EXPECT_EQ(result.shape, graph.type(v).shape) << name;
    EXPECT_EQ(testing::FromTensor(result).data, expected.outputs.at(name).data) << name;
  }
  EXPECT_EQ(machine.plan().constants.size(), 1u);
}

// Of whatever size and type they are.
TEST(Executor, AConstantWithoutDataIsZeros) {
  ir::Graph graph;
  auto data = std::make_shared<Tensor>(DType::kF32, Shape{2});
  data->as<float>()[0] = 3, data->as<float>()[1] = 4;
  const ir::ValueId x = graph.AddInput("x", {DType::kF32, {2}}), c = graph.AddConstant("c", data);
  const ir::ValueId few = ir::AddZeros(&graph, {DType::kF32, {2}});
  const ir::ValueId many = ir::AddZeros(&graph, {DType::kF32, {1000}});
  const auto add = [&](const char* name, ir::ValueId a, ir::ValueId b) {
    return (*ops::Emit(&graph, {.op = ir::OpKind::kAdd, .name = name, .inputs = {a, b}}))[0];
  };
  graph.outputs = {{"sum", add("sum", add("with", x, c), few)}, {"none", add("none", many, many)}, {"many", many}};
  ASSERT_TRUE(ops::VerifyGraph(graph).ok()) << ops::VerifyGraph(graph);
  GraphInputs in;
  in.inputs["x"] = {{2}, {1, 2}};
  Machine machine(graph, in, 1);
  machine.Run(in.step);
  EXPECT_EQ(testing::FromTensor(*machine.executor().Output("sum")).data, (std::vector<double>{4, 6}));
  EXPECT_EQ(testing::FromTensor(*machine.executor().Output("none")).data, std::vector<double>(1000, 0.0));
  EXPECT_EQ(testing::FromTensor(*machine.executor().Output("many")).data, std::vector<double>(1000, 0.0));
  EXPECT_EQ(machine.plan().constant_bytes, 2 * AlignUp(2 * 4) + AlignUp(1000 * 4));
}

TEST(MakePlan, TensorsAliveTogetherDoNotOverlap) {
  for (const SmallNetwork& network : testing::SmallNetworks()) {
    const models::Model model = testing::BuildSmallNetwork(network, "mode: BF16", 8);
    Machine machine(model.phases[0].train, testing::RandomInputs(network, model.phases[0].train), 1);
    // First write and last use of every arena tensor, by offset and first write: a later tensor may reuse the place.
    struct Life {
      int64_t begin, end;
      int first, last;
    };
    std::vector<Life> lives;
    const auto& steps = machine.plan().steps;
    const auto find = [&](const PlannedTensor& t, int s) {
      return std::find_if(lives.rbegin(), lives.rend(), [&](const Life& l) {
        return l.begin == t.offset && l.end == t.offset + NumElements(t.type.shape) * SizeOf(t.type.dtype) &&
               l.first < s;
      });
    };
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      lives.push_back(
          {steps[s].workspace_offset, steps[s].workspace_offset + steps[s].kernel->workspace_bytes(), s, s});
      for (const PlannedTensor& t : steps[s].inputs) {
        if (t.space != Space::kArena) continue;
        const auto life = find(t, s);
        ASSERT_NE(life, lives.rend()) << steps[s].name << " reads " << t.name << " that nothing wrote";
        life->last = s;
      }
      for (size_t o = 0; o < steps[s].outputs.size(); ++o) {
        const PlannedTensor& t = steps[s].outputs[o];
        if (t.space != Space::kArena) continue;
        // Written in place over an input, whose life ends where this one's begins.
        const int input = steps[s].kernel->overwrites(static_cast<int>(o));
        if (input >= 0 && steps[s].inputs[input].offset == t.offset) find(steps[s].inputs[input], s)->last = s - 1;
        lives.push_back({t.offset, t.offset + NumElements(t.type.shape) * SizeOf(t.type.dtype), s, s});
      }
    }
    for (size_t i = 0; i < lives.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
        EXPECT_FALSE(together && lives[i].begin < lives[j].end && lives[j].begin < lives[i].end)
            << network.name << " " << i << " " << j;
      }
    }
  }
}

int Accumulations(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(),
                                        [](const PlanStep& step) { return step.op == ir::OpKind::kAccumulateGrad; }));
}

TEST(MakePlan, OverwrittenGradientsNeedNoZerosAndAreTheSame) {
  for (const SmallNetwork& network : testing::SmallNetworks()) {
    for (const char* mode : {"mode: FP32", "mode: FP16", "mode: BF16"}) {
      SCOPED_TRACE(absl::StrCat(network.name, " ", mode));
      ir::Graph graph = testing::BuildSmallNetwork(network, mode, 8).phases[0].train;
      graph = passes::WidenGradients(std::move(graph)).value();
      const GraphInputs in = testing::RandomInputs(network, graph);
      Machine adding(graph, in, 1), overwriting(passes::OverwriteGradients(graph).value(), in, 1);
      EXPECT_FALSE(adding.plan().overwrites_gradients);
      ASSERT_TRUE(overwriting.plan().overwrites_gradients);
      EXPECT_EQ(overwriting.plan().gradient_order, adding.plan().gradient_order);
      EXPECT_LT(Accumulations(overwriting.plan()), Accumulations(adding.plan()));
      adding.Run(in.step);
      for (int run = 0; run < 2; ++run) {
        overwriting.Run(in.step);
        for (const int32_t p : adding.plan().gradient_order) {
          const TensorView expected = adding.memory().Gradient(p), found = overwriting.memory().Gradient(p);
          // Sums that begin with 0 lose the sign of another.
          for (int64_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(found.as<float>()[i], expected.as<float>()[i]) << graph.parameters[p].name << " " << i;
          }
        }
      }
    }
  }
}

TEST(ModelMemory, InitialWeightsFollowFromSeedAndName) {
  const models::Model model = testing::BuildSmallNetwork(testing::SmallNetworks()[2], "mode: FP32", 8);
  ModelLayout layout(model.phases[0].train);
  ModelMemory a = ModelMemory::Create(&layout, HostMemory()).value();
  ModelMemory b = ModelMemory::Create(&layout, HostMemory()).value();
  ModelMemory c = ModelMemory::Create(&layout, HostMemory()).value();
  EXPECT_TRUE(a.Initialize(1).ok());
  EXPECT_TRUE(b.Initialize(1).ok());
  EXPECT_TRUE(c.Initialize(2).ok());
  const int64_t n = layout.arena_elements();
  EXPECT_EQ(std::memcmp(a.masters(), b.masters(), n * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(a.masters(), c.masters(), n * sizeof(float)), 0);
  // Filters of 3x3x2 inputs: uniform in +-1/sqrt(18).
  float largest = 0;
  for (int64_t i = 0; i < a.Master(0).size(); ++i) largest = std::max(largest, std::abs(a.Master(0).as<float>()[i]));
  EXPECT_LE(largest, 1 / std::sqrt(18.0f));
  EXPECT_GE(largest, 0.9f / std::sqrt(18.0f));
}

TEST(ModelLayout, RefusesAnotherModelsGraph) {
  const models::Model a = testing::BuildSmallNetwork(testing::SmallNetworks()[0], "mode: FP32", 8);
  const models::Model b = testing::BuildSmallNetwork(testing::SmallNetworks()[1], "mode: FP32", 8);
  EXPECT_TRUE(ModelLayout(a.phases[0].train).Check(a.eval).ok());
  EXPECT_EQ(ModelLayout(a.phases[0].train).Check(b.phases[0].train).code(), absl::StatusCode::kInvalidArgument);
}

TEST(KernelTable, AGapIsNamed) {
  const auto backend = MakeCpuBackend(1);
  const auto kernel = backend->kernels().Prepare(
      {.op = ir::OpKind::kRelu, .name = "act", .inputs = {{DType::kI64, {1}}}, .outputs = {{DType::kI64, {1}}}});
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(kernel.status().message()),
              ::testing::HasSubstr("[relu] no kernel for (i64) -> (i64), node act"));
}

}  // namespace
}  // namespace ampd::runtime
