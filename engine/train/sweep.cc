#include "engine/train/sweep.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/quantize_fp8.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/plan.h"
#include "engine/train/available_memory.h"
#include "engine/train/bench_cell.h"
#include "engine/train/planned_model.h"
#include "engine/train/report.h"

namespace ampd::train {
namespace {

constexpr int64_t kImages = 32;
constexpr char kLayer[] = "op";

// The one layer is the first and the last: only a rule makes it FP8.
passes::PrecisionPolicy PolicyOf(v1::PrecisionSpec::Mode mode) {
  switch (mode) {
    case v1::PrecisionSpec::TF32:
      return {.compute = passes::kTf32};
    case v1::PrecisionSpec::FP16:
      return {.compute = DType::kF16};
    case v1::PrecisionSpec::BF16:
      return {.compute = DType::kBF16};
    case v1::PrecisionSpec::FP8:
      return {.compute = passes::kFp8, .rules = {{kLayer, passes::kFp8}}};
    default:
      return {.compute = DType::kF32};
  }
}

class SizeContender : public Contender {
 public:
  SizeContender(v1::PrecisionSpec::Mode mode, const SweepSize& size, const SweepOptions& options)
      : mode_(mode),
        size_(size),
        options_(options),
        clock_(options.trainer.clock ? options.trainer.clock : SteadySeconds) {}

  absl::Status Plan() override {
    const TrainerOptions& trainer = options_.trainer;
    const std::string& device = trainer.devices.empty() ? trainer.device : trainer.devices[0];
    AMPD_ASSIGN_OR_RETURN(backend_, trainer.make_backend ? trainer.make_backend()
                                                         : MakeBackend(device, trainer.threads, trainer.autotune_dir));
    // Before anything is made for it, a constant of the graph included.
    AMPD_RETURN_IF_ERROR(CheckAvailable(memory(), static_cast<int64_t>(std::ceil(size_.bytes()))));
    AMPD_ASSIGN_OR_RETURN(ir::Graph graph, GraphOf(size_));
    const passes::PrecisionPolicy policy = PolicyOf(mode_);
    passes::Pipeline pipeline;
    pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, policy); })
        .Add("quantize_fp8", [](ir::Graph g) { return passes::QuantizeFp8(std::move(g), false); })
        .Add("dead_nodes", passes::RemoveDeadNodes)
        .Add("publish_parameters", passes::PublishParameters);
    AMPD_ASSIGN_OR_RETURN(graph, pipeline.Run(std::move(graph)));
    layout_ = std::make_unique<runtime::ModelLayout>(graph);
    AMPD_ASSIGN_OR_RETURN(plan_, runtime::MakePlan(graph, *backend_, trainer.threads, layout_.get()));
    return absl::OkStatus();
  }

  int64_t bytes() const override {
    return 2 * layout_->arena_elements() * SizeOf(DType::kF32) + layout_->published_bytes() +
           layout_->publish_workspace_bytes() + 2 * layout_->state_bytes() + plan_.arena_bytes +
           BytesOf(plan_.inputs[0]);
  }
  const runtime::Memory& memory() const override { return *backend_->memory(); }

  absl::Status Load() override {
    AMPD_RETURN_IF_ERROR(CheckAvailable(memory(), bytes()));
    runtime::Memory* device = backend_->memory();
    AMPD_ASSIGN_OR_RETURN(runtime::ModelMemory model, runtime::ModelMemory::Create(layout_.get(), device));
    model_ = std::make_unique<runtime::ModelMemory>(std::move(model));
    AMPD_RETURN_IF_ERROR(model_->Initialize(0));
    AMPD_RETURN_IF_ERROR(model_->PublishAll());
    AMPD_RETURN_IF_ERROR(model_->BeginUpdate());
    AMPD_ASSIGN_OR_RETURN(arena_, runtime::Buffer::Allocate(device, plan_.arena_bytes, "workspace"));
    AMPD_ASSIGN_OR_RETURN(executor_, runtime::Executor::Create(&plan_, model_.get(), &arena_));
    input_ = std::make_unique<Tensor>(DType::kF32, plan_.inputs[0].type.shape);
    RngSequence draw(0, "sweep");
    for (float& value : input_->as<float>()) value = 2 * draw.NextUniform() - 1;
    return executor_->BindInput(plan_.inputs[0].name, input_->view().data);
  }
  void Unload() override {
    executor_.reset();
    model_.reset();
    arena_ = runtime::Buffer();
    input_.reset();
  }

  absl::Status Advance() override {
    double last = clock_(), seconds = 0;
    const auto hook = [&](const runtime::PlanStep& step, absl::Span<const TensorView>) {
      AMPD_RETURN_IF_ERROR(backend_->memory()->Wait());
      const double now = clock_();
      if (step.op != ir::OpKind::kCast) seconds += now - last;
      last = now;
      return absl::OkStatus();
    };
    AMPD_RETURN_IF_ERROR(executor_->Run({}, hook));
    seconds_.push_back(seconds);
    return absl::OkStatus();
  }
  bool done() const override { return static_cast<int64_t>(seconds_.size()) >= options_.warmup_steps + options_.steps; }

  absl::Status Finish(v1::BenchCell* cell) override {
    cell->set_peak_memory_bytes(bytes());
    const std::vector<double> timed(seconds_.begin() + options_.warmup_steps, seconds_.end());
    FillTimes(timed, size_.flops(), options_.trainer.device_model, cell);
    return absl::OkStatus();
  }

 private:
  const v1::PrecisionSpec::Mode mode_;
  const SweepSize size_;
  const SweepOptions& options_;
  const Clock clock_;
  std::unique_ptr<runtime::Backend> backend_;
  std::unique_ptr<runtime::ModelLayout> layout_;
  runtime::Plan plan_;
  std::unique_ptr<runtime::ModelMemory> model_;
  runtime::Buffer arena_;
  std::unique_ptr<Tensor> input_;
  std::unique_ptr<runtime::Executor> executor_;
  std::vector<double> seconds_;
};

}  // namespace

std::string SweepSize::Name() const {
  return kind == v1::Sweep::GEMM ? absl::StrCat(size) : absl::StrCat(size, " channels, ", kernel, "x", kernel);
}

double SweepSize::flops() const {
  const auto n = static_cast<double>(size), k = static_cast<double>(kernel), side = static_cast<double>(image);
  return kind == v1::Sweep::GEMM ? 2 * n * n * n : 2 * static_cast<double>(kImages) * side * side * k * k * n * n;
}

double SweepSize::bytes() const {
  const auto n = static_cast<double>(size), k = static_cast<double>(kernel), side = static_cast<double>(image);
  const double images = 2 * static_cast<double>(kImages) * side * side * n;
  return SizeOf(DType::kF32) * (kind == v1::Sweep::GEMM ? 3 * n * n : images + k * k * n * n);
}

std::vector<SweepSize> SizesOf(const v1::Sweep& sweep) {
  std::vector<SweepSize> sizes;
  for (const int64_t size : sweep.sizes()) {
    if (sweep.kind() == v1::Sweep::GEMM) sizes.push_back({.kind = sweep.kind(), .size = size});
    for (const int64_t kernel : sweep.kernels()) sizes.push_back({sweep.kind(), size, kernel, sweep.image()});
  }
  return sizes;
}

absl::StatusOr<ir::Graph> GraphOf(const SweepSize& size) {
  const bool gemm = size.kind == v1::Sweep::GEMM;
  const Shape x = gemm ? Shape{size.size, size.size} : Shape{kImages, size.image, size.image, size.size};
  const Shape w = gemm ? Shape{size.size, size.size} : Shape{size.size, size.kernel, size.kernel, size.size};
  ir::Graph graph;
  ir::Node node{.op = gemm ? ir::OpKind::kMatmul : ir::OpKind::kConv2d, .name = "op.product", .layer = kLayer};
  node.inputs.push_back(graph.AddInput("x", {DType::kF32, x}));
  node.inputs.push_back(graph.AddParameter(
      {.name = "op.weight", .type = {DType::kF32, w}, .init = {ir::Initializer::Kind::kUniform, 1}}));
  if (!gemm) {
    // What an odd and an even kernel need to keep the side.
    const int64_t before = (size.kernel - 1) / 2, after = size.kernel / 2;
    node.attributes.Set("pads", std::vector<int64_t>{before, before, after, after});
    node.attributes.Set("strides", std::vector<int64_t>{1, 1});
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> y, ops::Emit(&graph, std::move(node)));
  graph.outputs["y"] = y[0];
  return graph;
}

absl::StatusOr<std::vector<v1::BenchCell>> MeasureSize(const SweepSize& size, const SweepOptions& options) {
  std::vector<std::unique_ptr<Contender>> contenders;
  std::vector<v1::BenchCell> cells;
  for (const v1::PrecisionSpec::Mode mode : options.modes) {
    contenders.push_back(std::make_unique<SizeContender>(mode, size, options));
    cells.emplace_back();
    cells.back().set_mode(mode);
    cells.back().set_size(size.Name());
  }
  AMPD_RETURN_IF_ERROR(MeasureInTurn(contenders, options.turns, &cells));
  return cells;
}

}  // namespace ampd::train
