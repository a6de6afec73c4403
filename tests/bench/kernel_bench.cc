// Speed of the CPU backend's kernels: GFLOP/s of GEMM and convolution, GB/s of what is bound by memory.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/rng.h"
#include "engine/ops/op_def.h"

namespace ampd {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

constexpr int kThreads = 2;
using Ints = std::vector<int64_t>;

// A prepared kernel with its buffers.
class Runner {
 public:
  explicit Runner(const NodeDesc& desc) : desc_(desc) {
    RegisterCpuKernels(&table_);
    kernel_ = std::move(table_.Prepare(desc)).value();
    for (size_t i = 0; i < desc.inputs.size(); ++i) inputs_.push_back(MakeInput(static_cast<int>(i)));
    for (const ir::TensorType& t : desc.outputs) {
      buffers_.emplace_back(NumElements(t.shape) * SizeOf(t.dtype));
      outputs_.push_back({buffers_.back().data(), t.dtype, t.shape});
    }
    workspace_ = AlignedBuffer(kernel_->workspace_bytes());
  }

  void Run(benchmark::State& state) {
    for (auto _ : state) {
      const absl::Status status = kernel_->Launch({inputs_, outputs_, workspace_.data(), &step_});
      if (!status.ok()) state.SkipWithError(status.ToString().c_str());
    }
    const ops::Cost cost = ops::CostOf(desc_.op, {desc_.name, desc_.attributes, desc_.inputs}, desc_.outputs);
    state.counters["GFLOP/s"] = benchmark::Counter(cost.flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["GB/s"] = benchmark::Counter(cost.bytes / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  }

 private:
  TensorView MakeInput(int i) {
    const ir::TensorType& type = desc_.inputs[i];
    const int64_t n = NumElements(type.shape);
    Tensor values(DType::kF32, {n});
    RngSequence rng(1, "bench");
    for (float& v : values.as<float>()) v = rng.NextUniform() - 0.25f;
    const auto layout = desc_.IsParameter(i) ? kernel_->published_layout(i) : absl::nullopt;
    buffers_.emplace_back(layout ? layout->bytes : n * SizeOf(type.dtype));
    void* data = buffers_.back().data();
    const absl::Status status = layout ? layout->write(values.as<float>().data(), data)
                                       : backend_->Publish(values.as<float>().data(), n, type.dtype, data);
    if (!status.ok()) std::abort();
    return {data, type.dtype, type.shape};
  }

  NodeDesc desc_;
  runtime::KernelTable table_;
  std::unique_ptr<runtime::Backend> backend_ = MakeCpuBackend(kThreads);
  std::unique_ptr<runtime::Kernel> kernel_;
  std::vector<AlignedBuffer> buffers_;
  std::vector<TensorView> inputs_, outputs_;
  AlignedBuffer workspace_;
  runtime::StepState step_;
};

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

NodeDesc Finish(NodeDesc desc) {
  desc.threads = kThreads;
  desc.name = "bench";
  desc.outputs = ops::InferTypes(desc.op, {desc.name, desc.attributes, desc.inputs}).value();
  return desc;
}

void Measure(const std::string& name, NodeDesc desc) {
  benchmark::RegisterBenchmark(name.c_str(), [desc](benchmark::State& state) { Runner(Finish(desc)).Run(state); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void MeasureConv(const std::string& name, DType t, int64_t batch, int64_t size, int64_t in, int64_t out,
                 int64_t kernel) {
  const Shape x = {batch, size, size, in}, w = {out, kernel, kernel, in}, y = {batch, size, size, out};
  const int64_t pad = kernel / 2;
  const ir::Attributes base = {{"strides", Ints{1, 1}}, {"pads", Ints{pad, pad, pad, pad}}};
  const std::string suffix = absl::StrCat("/", name, "/", DTypeName(t));
  NodeDesc desc{
      .op = OpKind::kConv2d, .attributes = base, .inputs = {{t, x}, {t, w}}, .parameter_inputs = {false, true}};
  Measure("conv2d" + suffix, desc);
  desc.op = OpKind::kConv2dGradInput;
  desc.attributes.Set("input_shape", Ints(x.begin(), x.end()));
  desc.inputs[0].shape = y;
  Measure("conv2d_grad_input" + suffix, desc);
  desc.op = OpKind::kConv2dGradFilter;
  desc.attributes.Set("filter_shape", Ints(w.begin(), w.end()));
  desc.inputs[1].shape = x;
  desc.parameter_inputs.clear();
  Measure("conv2d_grad_filter" + suffix, desc);
}

void MeasureMatmul(const std::string& name, DType t, int64_t m, int64_t k, int64_t n) {
  const std::string suffix = absl::StrCat("/", name, "/", DTypeName(t));
  NodeDesc desc{.op = OpKind::kMatmul, .inputs = {{t, {m, k}}, {t, {k, n}}}, .parameter_inputs = {false, true}};
  Measure("matmul" + suffix, desc);
  Measure("matmul_a_transposed" + suffix,
          {.op = OpKind::kMatmul, .attributes = {{"transpose_a", int64_t{1}}}, .inputs = {{t, {m, k}}, {t, {m, n}}}});
  Measure("matmul_b_transposed" + suffix, {.op = OpKind::kMatmul,
                                           .attributes = {{"transpose_b", int64_t{1}}},
                                           .inputs = {{t, {m, n}}, {t, {k, n}}},
                                           .parameter_inputs = {false, true}});
}

void MeasureMemoryBound(DType t) {
  const std::string suffix = absl::StrCat("/", DTypeName(t));
  const ir::TensorType x = {t, {32, 28, 28, 64}}, c = {DType::kF32, {64}}, ct = {t, {64}};
  const ir::TensorType pooled = {t, {32, 14, 14, 64}};
  const ir::Attributes pool = {{"size", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{0, 0, 0, 0}}};
  Measure("add" + suffix, {.op = OpKind::kAdd, .inputs = {x, x}});
  Measure("relu" + suffix, {.op = OpKind::kRelu, .inputs = {x}});
  Measure("relu_grad" + suffix, {.op = OpKind::kReluGrad, .inputs = {x, x}});
  Measure("bias_add" + suffix, {.op = OpKind::kBiasAdd, .inputs = {x, ct}});
  Measure("bias_add_grad" + suffix, {.op = OpKind::kBiasAddGrad, .inputs = {x}});
  Measure("batch_norm" + suffix, {.op = OpKind::kBatchNorm, .attributes = {{"epsilon", 1e-5}}, .inputs = {x, c, c}});
  Measure("batch_norm_grad" + suffix,
          {.op = OpKind::kBatchNormGrad, .attributes = {{"epsilon", 1e-5}}, .inputs = {x, x, c, c, c}});
  Measure("max_pool2d" + suffix, {.op = OpKind::kMaxPool2d, .attributes = pool, .inputs = {x}});
  Measure("max_pool2d_grad" + suffix,
          {.op = OpKind::kMaxPool2dGrad, .attributes = pool, .inputs = {pooled, x, pooled}});
  Measure("dropout" + suffix,
          {.op = OpKind::kDropout, .attributes = {{"rate", 0.5}, {"stream", int64_t{5}}}, .inputs = {x}});
  Measure(
      "cast_from_f32" + suffix,
      {.op = OpKind::kCast, .attributes = {{"dtype", std::string(DTypeName(t))}}, .inputs = {{DType::kF32, x.shape}}});
}

void MeasureUpdate(const char* name, optim::OptimizerConfig config) {
  benchmark::RegisterBenchmark(name, [config](benchmark::State& state) {
    constexpr int64_t kSize = 1 << 20;
    Tensor w(DType::kF32, {kSize}), g(DType::kF32, {kSize}), m1(DType::kF32, {kSize}), m2(DType::kF32, {kSize});
    Tensor m3(DType::kF32, {kSize});
    const runtime::UpdateRange range = {{0, kSize}, 1, config.weight_decay};
    const auto backend = MakeCpuBackend(kThreads);
    runtime::UpdateArgs args{.config = config,
                             .scalars = {.learning_rate = 1e-3f, .step_size = 1e-3f},
                             .masters = w.as<float>().data(),
                             .gradients = g.as<float>().data(),
                             .moment1 = m1.as<float>().data(),
                             .moment2 = m2.as<float>().data(),
                             .moment3 = m3.as<float>().data(),
                             .ranges = {&range, 1}};
    for (auto _ : state) benchmark::DoNotOptimize(backend->Update(args).ok());
    state.counters["Gelement/s"] = benchmark::Counter(kSize / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  })->UseRealTime();
}

void MeasureCheck() {
  benchmark::RegisterBenchmark("check_gradients", [](benchmark::State& state) {
    constexpr int64_t kSize = 1 << 20;
    Tensor g(DType::kF32, {kSize});
    const auto backend = MakeCpuBackend(kThreads);
    const runtime::ArenaSlot slot{0, kSize};
    runtime::GradientCheck check;
    for (auto _ : state) {
      benchmark::DoNotOptimize(backend->CheckGradients(g.as<float>().data(), {&slot, 1}, 1.0f, &check).ok());
    }
    state.counters["Gelement/s"] = benchmark::Counter(kSize / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  })->UseRealTime();
}

void RegisterAll() {
  for (DType t : kTypes) {
    MeasureConv("3x3x64 32x28x28", t, 32, 28, 64, 64, 3);
    MeasureConv("5x5x32 32x28x28", t, 32, 28, 32, 32, 5);
    MeasureConv("5x5 1to32 32x28x28", t, 32, 28, 1, 32, 5);
    MeasureMatmul("1024", t, 1024, 1024, 1024);
    MeasureMatmul("512x16x32", t, 512, 16, 32);
    MeasureMatmul("128x3136x128", t, 128, 3136, 128);
    MeasureMemoryBound(t);
  }
  MeasureUpdate("update/adamw", {});
  MeasureUpdate("update/lamb", {.kind = optim::OptimizerKind::kLamb});
  MeasureUpdate("update/rmsprop", {.kind = optim::OptimizerKind::kRmsProp});
  MeasureUpdate("update/sgd_momentum", {.kind = optim::OptimizerKind::kSgd, .momentum = 0.9f});
  MeasureCheck();
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) {
  ampd::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
