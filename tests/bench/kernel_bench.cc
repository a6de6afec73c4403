// Speed of a backend's kernels: FLOP/s and bytes/s, as the ops count them, for every family of operations.
//   kernel_bench [--device=cpu-0|cuda|UUID] [--threads=N] [--sweep] [Google Benchmark's flags]
// --sweep: products and convolutions of many sizes instead (kernel_sweeps.cc).
// A row is OP/SIZES/DTYPE; the gradients of an op stand behind it. Inputs of the ops that compute in 16 bits have the
// dtype of the row's name; ops that are fp32 in every mode have rows in f32 alone.
#include <benchmark/benchmark.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/passes/fuse.h"
#include "tests/bench/kernel_rows.h"

namespace ampd::bench {
namespace {

using ir::Attributes;
using ir::OpKind;
using ir::TensorType;
using Ints = std::vector<int64_t>;

constexpr DType kF32 = DType::kF32, kI32 = DType::kI32;

Attributes Window(int64_t size, int64_t stride, int64_t pad) {
  return {{"size", Ints{size, size}}, {"strides", Ints{stride, stride}}, {"pads", Ints{pad, pad, pad, pad}}};
}

absl::Status MeasureConvolutions(DType t) {
  struct Case {
    int64_t kernel, in, out;
  };
  for (const Case& c : {Case{3, 64, 64}, {5, 32, 32}, {5, 1, 32}, {1, 64, 256}}) {
    const Ints pads(4, c.kernel / 2);
    AMPD_RETURN_IF_ERROR(MeasureUse(absl::StrCat("32x28x28x", c.in, ",", c.kernel, "x", c.kernel, "x", c.out),
                                    {.op = OpKind::kConv2d,
                                     .attributes = {{"strides", Ints{1, 1}}, {"pads", pads}},
                                     .inputs = {{t, {32, 28, 28, c.in}}, {t, {c.out, c.kernel, c.kernel, c.in}}},
                                     .weights = {1}}));
  }
  return MeasureUse("32x14x14x64,4x4x32", {.op = OpKind::kConvTranspose2d,
                                           .attributes = {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}},
                                           .inputs = {{t, {32, 14, 14, 64}}, {t, {64, 4, 4, 32}}},
                                           .weights = {1}});
}

absl::Status MeasureProducts(DType t) {
  struct Case {
    int64_t m, k, n;
  };
  for (const Case& c : {Case{1024, 1024, 1024}, {512, 16, 32}, {128, 3136, 128}, {1024, 256, 1000}}) {
    AMPD_RETURN_IF_ERROR(
        MeasureUse(absl::StrCat(c.m, "x", c.k, "x", c.n),
                   {.op = OpKind::kMatmul, .inputs = {{t, {c.m, c.k}}, {t, {c.k, c.n}}}, .weights = {1}}));
  }
  const TensorType q = {t, {8, 128, 256}}, long_q = {t, {1, 1024, 256}};
  const Attributes heads = {{"heads", int64_t{4}}, {"kv_heads", int64_t{4}}, {"causal", int64_t{1}}};
  AMPD_RETURN_IF_ERROR(
      MeasureUse("8x128x256,causal", {.op = OpKind::kAttention, .attributes = heads, .inputs = {q, q, q}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("1x1024x256,causal",
                                  {.op = OpKind::kAttention, .attributes = heads, .inputs = {long_q, long_q, long_q}}));
  return MeasureUse("8x128x256,mask", {.op = OpKind::kAttention,
                                       .attributes = {{"heads", int64_t{4}}, {"kv_heads", int64_t{4}}},
                                       .inputs = {q, q, q, {kF32, {128, 128}}}});
}

absl::Status MeasureSequences(DType t) {
  const TensorType x = {t, {32, 64, 256}};
  const Attributes forward = {{"direction", std::string("forward")}};
  AMPD_RETURN_IF_ERROR(
      MeasureUse("32x64x256", {.op = OpKind::kLstm,
                               .attributes = forward,
                               .inputs = {x, {t, {1024, 256}}, {t, {1024, 256}}, {kF32, {1024}}, {kF32, {1024}}}}));
  AMPD_RETURN_IF_ERROR(
      MeasureUse("32x64x256", {.op = OpKind::kGru,
                               .attributes = forward,
                               .inputs = {x, {t, {768, 256}}, {t, {768, 256}}, {kF32, {768}}, {kF32, {768}}}}));
  return MeasureUse("30000x256,4096",
                    {.op = OpKind::kEmbedding, .inputs = {{t, {30000, 256}}, {kI32, {4096}}}, .index_below = 30000});
}

absl::Status MeasureWindows(DType t) {
  const TensorType image = {t, {32, 28, 28, 64}}, channels = {kF32, {64}};
  const Attributes epsilon = {{"epsilon", 1e-5}};
  AMPD_RETURN_IF_ERROR(
      MeasureUse("32x28x28x64,2x2", {.op = OpKind::kMaxPool2d, .attributes = Window(2, 2, 0), .inputs = {image}}));
  AMPD_RETURN_IF_ERROR(
      MeasureUse("32x28x28x64,3x3", {.op = OpKind::kAvgPool2d, .attributes = Window(3, 1, 1), .inputs = {image}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("32x28x28x64", {.op = OpKind::kGlobalAvgPool, .inputs = {image}}));
  AMPD_RETURN_IF_ERROR(MeasureUse(
      "32x28x28x64", {.op = OpKind::kBatchNorm, .attributes = epsilon, .inputs = {image, channels, channels}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("32x28x28x64,8 groups", {.op = OpKind::kGroupNorm,
                                                           .attributes = {{"epsilon", 1e-5}, {"groups", int64_t{8}}},
                                                           .inputs = {image, channels, channels}}));
  return MeasureUse("32x28x28x64,by 2",
                    {.op = OpKind::kPad, .attributes = {{"pads", Ints{0, 2, 2, 0, 0, 2, 2, 0}}}, .inputs = {image}});
}

absl::Status MeasureRows(DType t) {
  const TensorType x = {t, {4096, 512}}, features = {kF32, {512}};
  const Attributes norm = {{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  AMPD_RETURN_IF_ERROR(
      MeasureUse("4096x512", {.op = OpKind::kLayerNorm, .attributes = norm, .inputs = {x, features, features}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("4096x512", {.op = OpKind::kRmsNorm, .attributes = norm, .inputs = {x, features}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("4096x512", {.op = OpKind::kBiasAdd, .inputs = {x, {t, {512}}}}));
  return MeasureUse("4096x512",
                    {.op = OpKind::kDropout, .attributes = {{"rate", 0.5}, {"stream", int64_t{5}}}, .inputs = {x}});
}

absl::Status MeasureMovement(DType t) {
  const TensorType x = {t, {4096, 512}};
  AMPD_RETURN_IF_ERROR(
      MeasureUse("4096x512", {.op = OpKind::kTranspose, .attributes = {{"perm", Ints{1, 0}}}, .inputs = {x}}));
  AMPD_RETURN_IF_ERROR(MeasureUse(
      "32x128x4x64,0 2 1 3",
      {.op = OpKind::kTranspose, .attributes = {{"perm", Ints{0, 2, 1, 3}}}, .inputs = {{t, {32, 128, 4, 64}}}}));
  AMPD_RETURN_IF_ERROR(
      MeasureUse("4096x512,half the columns",
                 {.op = OpKind::kSlice,
                  .attributes = {{"starts", Ints{0, 128}}, {"ends", Ints{4096, 384}}, {"steps", Ints{1, 1}}},
                  .inputs = {x}}));
  AMPD_RETURN_IF_ERROR(MeasureUse("two of 4096x512,columns",
                                  {.op = OpKind::kConcat, .attributes = {{"axis", int64_t{1}}}, .inputs = {x, x}}));
  return MeasureUse("4096x512,4096 rows", {.op = OpKind::kGather,
                                           .attributes = {{"axis", int64_t{0}}},
                                           .inputs = {x, {kI32, {4096}}},
                                           .index_below = 4096});
}

absl::Status MeasureElementwise(DType t) {
  const TensorType x = {t, {32, 28, 28, 64}};
  for (OpKind op : {OpKind::kRelu, OpKind::kGelu, OpKind::kSilu, OpKind::kSigmoid, OpKind::kTanh, OpKind::kElu,
                    OpKind::kSoftplus, OpKind::kAbs}) {
    AMPD_RETURN_IF_ERROR(MeasureUse("32x28x28x64", {.op = op, .inputs = {x}}));
  }
  for (OpKind op : {OpKind::kAdd, OpKind::kMul, OpKind::kDiv, OpKind::kMax}) {
    AMPD_RETURN_IF_ERROR(MeasureUse("32x28x28x64", {.op = op, .inputs = {x, x}}));
  }
  return MeasureUse("32x28x28x64 of f32", {.op = OpKind::kCast,
                                           .attributes = {{"dtype", std::string(DTypeName(t))}},
                                           .inputs = {{kF32, x.shape}},
                                           .gradients = false});
}

// relu(x * scale + bias + residual), joined.
absl::Status MeasureFusedChain(DType t) {
  const TensorType x = {t, {32, 28, 28, 64}}, row = {t, {64}};
  ir::Graph graph;
  const ir::ValueId a = graph.AddInput("x", x), residual = graph.AddInput("residual", x);
  const ir::ValueId scale = graph.AddInput("scale", row), bias = graph.AddInput("bias", row);
  ir::ValueId y = a;
  const auto then = [&](OpKind op, std::vector<ir::ValueId> inputs) -> absl::Status {
    inputs.insert(inputs.begin(), y);
    AMPD_ASSIGN_OR_RETURN(const auto outputs,
                          ops::Emit(&graph, {.op = op,
                                             .name = std::string(ir::OpName(op)) + std::to_string(graph.nodes.size()),
                                             .inputs = inputs}));
    y = outputs[0];
    return absl::OkStatus();
  };
  AMPD_RETURN_IF_ERROR(then(OpKind::kMul, {scale}));
  AMPD_RETURN_IF_ERROR(then(OpKind::kAdd, {bias}));
  AMPD_RETURN_IF_ERROR(then(OpKind::kAdd, {residual}));
  AMPD_RETURN_IF_ERROR(then(OpKind::kRelu, {}));
  graph.outputs["y"] = y;
  const std::unique_ptr<runtime::Backend> cpu = MakeCpuBackend(rows().threads);
  const runtime::Backend* backend = rows().device != nullptr ? rows().device : cpu.get();
  if (!backend->CanFuse(OpKind::kRelu)) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(graph, passes::Fuse(std::move(graph), [&](OpKind op) { return backend->CanFuse(op); }));
  Measure(absl::StrCat("fused/relu(x*s+b+r),32x28x28x64/", DTypeName(t)), DescOf(graph, graph.nodes[0], {}), 2);
  return absl::OkStatus();
}

// What is fp32 in every mode.
absl::Status MeasureFp32Only() {
  const TensorType logits = {kF32, {1024, 1000}}, labels = {kI32, {1024}}, x = {kF32, {4096, 512}};
  for (OpKind op : {OpKind::kSoftmax, OpKind::kLogSoftmax}) {
    AMPD_RETURN_IF_ERROR(MeasureUse("1024x1000", {.op = op, .attributes = {{"axis", int64_t{1}}}, .inputs = {logits}}));
  }
  AMPD_RETURN_IF_ERROR(
      MeasureUse("1024x1000", {.op = OpKind::kSoftmaxCrossEntropy, .inputs = {logits, labels}, .index_below = 1000}));
  AMPD_RETURN_IF_ERROR(MeasureUse("16x200x64,20 labels",
                                  {.op = OpKind::kCtcLoss,
                                   .attributes = {{"blank", int64_t{63}}},
                                   .inputs = {{kF32, {16, 200, 64}}, {kI32, {16, 20}}, {kI32, {16}}, {kI32, {16}}},
                                   .index_below = 21}));
  AMPD_RETURN_IF_ERROR(
      MeasureUse("32x8732x25", {.op = OpKind::kMultiboxLoss,
                                .inputs = {{kF32, {32, 8732, 25}}, {kI32, {32, 8732}}, {kF32, {32, 8732, 4}}},
                                .index_below = 2}));
  for (OpKind op : {OpKind::kReduceSum, OpKind::kReduceMean, OpKind::kReduceMax}) {
    for (int64_t axis : {0, 1}) {
      AMPD_RETURN_IF_ERROR(MeasureUse(absl::StrCat("4096x512,axis ", axis),
                                      {.op = op,
                                       .attributes = {{"axes", Ints{axis}}, {"keepdims", int64_t{0}}},
                                       .inputs = {x},
                                       .gradients = op != OpKind::kReduceSum}));
    }
  }
  for (OpKind op : {OpKind::kExp, OpKind::kLog, OpKind::kSqrt}) {
    AMPD_RETURN_IF_ERROR(MeasureUse("4096x512", {.op = op, .inputs = {x}, .gradients = false}));
  }
  return absl::OkStatus();
}

// Arrays read and written an element, four bytes each.
void MeasureUpdate(const char* name, optim::OptimizerConfig config) {
  benchmark::RegisterBenchmark(name, [config](benchmark::State& state) {
    constexpr int64_t kSize = 1 << 20;
    Tensor w(kF32, {kSize}), g(kF32, {kSize}), m1(kF32, {kSize}), m2(kF32, {kSize}), m3(kF32, {kSize});
    const runtime::UpdateRange range = {{0, kSize}, 1, config.weight_decay};
    const auto backend = MakeCpuBackend(rows().threads);
    runtime::UpdateArgs args{.config = config,
                             .scalars = {.learning_rate = 1e-3f, .step_size = 1e-3f},
                             .masters = w.as<float>().data(),
                             .gradients = g.as<float>().data(),
                             .moment1 = m1.as<float>().data(),
                             .moment2 = m2.as<float>().data(),
                             .moment3 = m3.as<float>().data(),
                             .ranges = {&range, 1}};
    for (auto _ : state) benchmark::DoNotOptimize(backend->Update(args).ok());
    state.counters["B/s"] = PerSecond(4.0 * kSize * (3 + 2 * config.moments()));
  })->UseRealTime();
}

void MeasureArenaPasses() {
  MeasureUpdate("update/adamw/1048576", {});
  MeasureUpdate("update/lamb/1048576", {.kind = optim::OptimizerKind::kLamb});
  MeasureUpdate("update/rmsprop/1048576", {.kind = optim::OptimizerKind::kRmsProp});
  MeasureUpdate("update/adagrad/1048576", {.kind = optim::OptimizerKind::kAdagrad});
  MeasureUpdate("update/sgd/1048576", {.kind = optim::OptimizerKind::kSgd});
  MeasureUpdate("update/sgd_momentum/1048576", {.kind = optim::OptimizerKind::kSgd, .momentum = 0.9f});
  benchmark::RegisterBenchmark("check_gradients_and_norm/1048576", [](benchmark::State& state) {
    constexpr int64_t kSize = 1 << 20;
    Tensor g(kF32, {kSize});
    const auto backend = MakeCpuBackend(rows().threads);
    const runtime::ArenaSlot slot{0, kSize};
    runtime::GradientCheck check;
    for (auto _ : state) {
      benchmark::DoNotOptimize(backend->CheckGradients(g.as<float>().data(), {&slot, 1}, 1.0f, &check).ok());
    }
    state.counters["B/s"] = PerSecond(4.0 * kSize);
    state.counters["FLOP/s"] = PerSecond(3.0 * kSize);
  })->UseRealTime();
}

absl::Status RegisterAll() {
  for (DType t : {kF32, DType::kF16, DType::kBF16}) {
    for (const auto family : {MeasureProducts, MeasureConvolutions, MeasureSequences, MeasureWindows, MeasureRows,
                              MeasureMovement, MeasureElementwise, MeasureFusedChain}) {
      AMPD_RETURN_IF_ERROR(family(t));
    }
  }
  // These take host memory.
  if (rows().device == nullptr) MeasureArenaPasses();
  return MeasureFp32Only();
}

struct Options {
  std::string device = "cpu-0";
  bool sweep = false;
};

// What Google Benchmark has left of the command line.
absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--sweep") {
      options.sweep = true;
    } else if (absl::ConsumePrefix(&argument, "--device=")) {
      options.device = std::string(argument);
    } else if (!absl::ConsumePrefix(&argument, "--threads=") || !absl::SimpleAtoi(argument, &rows().threads)) {
      return absl::InvalidArgumentError(
          "usage: kernel_bench [--device=cpu-0|cuda|UUID] [--threads=N] [--sweep] [--benchmark_...]");
    }
  }
  return options;
}

absl::Status Main(int argc, char** argv) {
  AMPD_ASSIGN_OR_RETURN(const Options options, Parse(argc, argv));
  std::unique_ptr<runtime::Backend> device;
  if (options.device != "cpu-0") {
    AMPD_ASSIGN_OR_RETURN(device, MakeCudaBackend(options.device == "cuda" ? "" : options.device));
    rows().device = device.get();
  }
  AMPD_RETURN_IF_ERROR(options.sweep ? RegisterSweeps() : RegisterAll());
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace ampd::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const absl::Status status = ampd::bench::Main(argc, argv);
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
