#include "engine/train/plan_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda_backend.h"
#include "engine/train/gradient_diagnostics.h"
#include "engine/train/sizing_backend.h"
#include "engine/train/trainer.h"
#include "proto/spec/device_memory.h"
#include "proto/spec/device_models.h"
#include "tests/unit/engine/train/plan_examples.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

constexpr char kMisaligned[] = R"(
model:
  layers:
    - {name: stem, conv2d: {filters: 30, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: bn, batch_norm: {}}
    - {name: conv, conv2d: {filters: 30, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: pool, max_pool: {size: [4, 4]}}
    - {name: flat, flatten: {}}
    - {name: hidden, dense: {units: 100, activation: RELU}}
    - {name: head, dense: {units: 50257}}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
precision: {mode: FP16}
optimizer: {adamw: {}}
train: {batch_size: 33}
)";

const models::SampleInfo kGlyphs{.input_shape = {28, 28, 1}, .classes = 10};

v1::PlanReport Report(const v1::JobSpec& spec, const v1::DeviceModel& model,
                      const std::vector<PrecisionSpec::Mode>& modes = {}) {
  auto report = MakePlanReport(Resolved(spec), kGlyphs, model, modes);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

StepCosts Costs(const v1::JobSpec& spec, const v1::DeviceModel& model) {
  const ResolvedJobSpec resolved = Resolved(spec);
  const DevicePlanner planner(kGlyphs, &model);
  const auto planned = planner.Plan(resolved);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planner.Costs(resolved, *planned);
}

int64_t Bytes(const v1::JobSpec& spec, const v1::DeviceModel& model) {
  const auto planned = DevicePlanner(kGlyphs, &model).Plan(Resolved(spec));
  EXPECT_TRUE(planned.ok()) << planned.status();
  return TotalBytes(*planned);
}

constexpr char kDense[] = R"(
model: {layers: [{name: flat, flatten: {}}, {name: a, dense: {units: 256, bias: false}}, {name: b, dense: {units: 16, bias: false}}],
        loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {}}}
optimizer: {sgd: {}}
train: {batch_size: 64}
)";

// y = x W^T: 2 m n k forward, as many for the weights' gradient, and for the input's where there is a layer below.
TEST(PlanReport, CountsOperationsOfProducts) {
  const v1::PlanReport report = Report(Spec(kDense), Model("H100-SXM"));
  const double a = 2.0 * 64 * 256 * 784, b = 2.0 * 64 * 16 * 256;
  // The update: one multiply-add a parameter, with SGD.
  EXPECT_EQ(Layer(report, "a").flops(), 2 * a + 2 * 256 * 784);
  EXPECT_EQ(Layer(report, "b").flops(), 3 * b + 2 * 16 * 256);
  EXPECT_EQ(Layer(report, "a").mnk(0), 64);
  EXPECT_EQ(Layer(report, "a").mnk(1), 256);
  EXPECT_EQ(Layer(report, "a").mnk(2), 784);
}

TEST(PlanReport, TheFloorIsTheRooflines) {
  v1::DeviceModel model = Model("H100-SXM");
  const StepCosts costs = Costs(Spec(kDense), model);
  // Bytes alone: what no peak can make faster.
  v1::DeviceModel unbounded = model;
  unbounded.set_fp32_flops(1e30);
  EXPECT_NEAR(Costs(Spec(kDense), unbounded).seconds, costs.bytes / model.memory_bandwidth(), 1e-12);
  // Operations alone.
  unbounded = model;
  unbounded.set_memory_bandwidth(1e30);
  EXPECT_NEAR(Costs(Spec(kDense), unbounded).seconds, costs.flops / model.fp32_flops(), 1e-12);
  EXPECT_GE(costs.seconds, costs.bytes / model.memory_bandwidth());
  EXPECT_GE(costs.seconds, costs.flops / model.fp32_flops());
}

TEST(PlanReport, SaysWhyALayerIsNotEligible) {
  const v1::PlanReport report =
      Report(Spec(kMisaligned, {"precision.rules=[{match: head, dtype: FP32}]"}), Model("T4"));
  EXPECT_EQ(Layer(report, "stem").tensor_core_reason(), "channels = 1, filters = 30 are no multiples of 8");
  EXPECT_TRUE(Layer(report, "conv").tensor_core_eligible());
  EXPECT_EQ(Layer(report, "conv").padding(), "channels 30 -> 32, filters 30 -> 32");
  EXPECT_EQ(Layer(report, "hidden").padding(), "K 1470 -> 1472, N 100 -> 104");
  EXPECT_EQ(Layer(report, "head").tensor_core_reason(), "f32");
  EXPECT_EQ(Layer(report, "head").dtype_reason(), "rule head");
  EXPECT_EQ(Layer(report, "conv").dtype_reason(), "mode FP16");
  EXPECT_EQ(Layer(report, "bn").tensor_core_reason(), "no product");
  EXPECT_EQ(Layer(report, "loss").dtype_reason(), "losses stay f32");
}

TEST(PlanReport, SaysThatRulesLeaveIdsAlone) {
  constexpr char kIds[] = R"(
model:
  layers:
    - {name: cut, slice: {axis: 1, begin: 2}}
    - {name: table, embedding: {vocabulary: 3000, features: 8}}
    - {name: rnn, lstm: {units: 8, output: LAST_STEP}}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
precision: {mode: FP16, rules: [{match: "*", dtype: FP16}]}
)";
  const auto report = MakePlanReport(Resolved(Spec(kIds)), {.input_shape = {6}, .classes = 8}, Model("T4"), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(Layer(*report, "cut").dtype(), "f32");
  EXPECT_EQ(Layer(*report, "cut").dtype_reason(), "ids and sums stay f32");
  EXPECT_EQ(Layer(*report, "table").dtype(), "f16");
  EXPECT_EQ(Layer(*report, "table").dtype_reason(), "rule *");
}

TEST(PlanReport, FP8WantsSixteen) {
  const v1::PlanReport report = Report(Spec(kMisaligned, {"precision.mode=FP8"}), Model("H100-SXM"));
  EXPECT_EQ(Layer(report, "hidden").padding(), "K 1470 -> 1472, N 100 -> 112");
}

TEST(PlanReport, AModeThatTheDeviceCannotDoIsSaidTo) {
  const v1::PlanReport report = Report(Spec(kDense), Model("P100"));
  for (const auto mode : {PrecisionSpec::TF32, PrecisionSpec::FP16, PrecisionSpec::BF16, PrecisionSpec::FP8}) {
    EXPECT_FALSE(Mode(report, mode).supported());
    EXPECT_NE(Mode(report, mode).reason().find("no tensor cores"), std::string::npos) << Mode(report, mode).reason();
  }
  EXPECT_TRUE(Mode(report, PrecisionSpec::FP32).supported());
  EXPECT_EQ(Layer(report, "a").tensor_core_reason(), "f32");
}

// Of aligned extents: the gradient of what is padded is made beside its place.
TEST(PlanReport, MemoryAddsUpAndHalvesWhereItShould) {
  const v1::PlanReport report =
      Report(Spec(kMisaligned, {"model.layers[5].dense.units=104", "model.layers[6].dense.units=50264"}),
             Model("A100-SXM-40GB"));
  for (const v1::ModeEstimate& mode : report.modes()) {
    if (!mode.supported()) continue;
    EXPECT_EQ(mode.total_bytes(), mode.weight_bytes() + mode.gradient_bytes() + mode.optimizer_bytes() +
                                      mode.activation_bytes() + mode.workspace_bytes());
    // AdamW: two moments in fp32.
    EXPECT_EQ(mode.optimizer_bytes(), 2 * mode.gradient_bytes());
  }
  EXPECT_LT(Mode(report, PrecisionSpec::FP16).activation_bytes(), Mode(report, PrecisionSpec::FP32).activation_bytes());
  // Masters stay; the 16-bit copies come on top.
  EXPECT_GT(Mode(report, PrecisionSpec::FP16).weight_bytes(), Mode(report, PrecisionSpec::FP32).weight_bytes());
}

TEST(PlanReport, TheLargestBatchFitsAndOneMoreDoesNot) {
  v1::DeviceModel model = Model("T4");
  const int64_t room = int64_t{900} << 20;
  model.set_memory_bytes(room + kProcessBytes);
  const ResolvedJobSpec spec = Resolved(Spec(kMisaligned));
  const DevicePlanner planner(kGlyphs, &model);
  const int64_t largest = LargestBatch(planner, spec);
  ASSERT_GT(largest, 33);
  const auto bytes = [&](int64_t batch) { return TotalBytes(*planner.Plan(*WithBatch(spec, batch))); };
  EXPECT_LE(bytes(largest), room);
  EXPECT_GT(bytes(largest + 1), room);
  for (const int64_t memory : {kProcessBytes + (1 << 20), kProcessBytes, kProcessBytes - 1, int64_t{1}}) {
    model.set_memory_bytes(memory);
    EXPECT_EQ(LargestBatch(planner, spec), 0) << "the weights alone are larger than what is left of " << memory;
  }
}

// A context on a GPU, and the libraries in it, take memory that no plan has; a CPU's process is the worker that plans.
TEST(PlanReport, MemoryIsLeftToAProcessOnAGpu) {
  v1::DeviceModel gpu = Model("T4"), cpu = Model("CPU");
  gpu.set_memory_bytes(int64_t{3} << 30);
  cpu.set_memory_bytes(int64_t{3} << 30);
  EXPECT_EQ(DevicePlanner(kGlyphs, &gpu).room_bytes(), (int64_t{3} << 30) - kProcessBytes);
  EXPECT_EQ(DevicePlanner(kGlyphs, &cpu).room_bytes(), int64_t{3} << 30);
  const v1::PlanReport report = Report(Spec(kMisaligned), gpu, {PrecisionSpec::FP16});
  const int64_t largest = Mode(report, PrecisionSpec::FP16).largest_batch();
  ASSERT_GT(largest, 0);
  EXPECT_LE(Bytes(Spec(kMisaligned, {absl::StrCat("train.batch_size=", largest)}), gpu),
            gpu.memory_bytes() - kProcessBytes);
}

// A batch that is planned may be far too large for the machine that plans it.
TEST(PlanReport, ZerosOfAPlanTakeNoMemory) {
  constexpr char kLast[] = R"(
model: {layers: [{name: rnn, lstm: {units: 64, output: LAST_STEP}}, {name: head, dense: {units: 10}}],
        loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {}}}
optimizer: {sgd: {}}
train: {batch_size: 65536}
)";
  for (const char* device : {"H100-SXM", "CPU"}) {
    const v1::DeviceModel model = Model(device);
    const auto planned = DevicePlanner(kGlyphs, &model).Plan(Resolved(Spec(kLast)));
    ASSERT_TRUE(planned.ok()) << planned.status();
    const runtime::Plan& plan = planned->model->phases[0].plans[0];
    ASSERT_FALSE(plan.constants.empty());
    for (const auto& constant : plan.constants) EXPECT_EQ(constant, nullptr) << constant->view().bytes();
    // Gradients of the states at every step and of the last cells; those of the last states are not zero.
    EXPECT_EQ(plan.constant_bytes, int64_t{65536} * 64 * 4 * (28 + 1));
  }
}

TEST(PlanReport, ABatchThatFitsIsFoundFarBelowTheJobs) {
  v1::DeviceModel model = Model("T4");
  const ResolvedJobSpec spec = Resolved(Spec(kDense, {"train.batch_size=524288"}));
  const DevicePlanner planner(kGlyphs, &model);
  for (const int64_t fits : {1, 3, 700}) {
    model.set_memory_bytes(TotalBytes(*planner.Plan(*WithBatch(spec, fits))) + kProcessBytes);
    const int64_t largest = LargestBatch(planner, spec);
    ASSERT_GE(largest, fits);
    EXPECT_LE(TotalBytes(*planner.Plan(*WithBatch(spec, largest))), planner.room_bytes()) << largest;
  }
  model.set_memory_bytes(TotalBytes(*planner.Plan(*WithBatch(spec, 1))) + kProcessBytes - 1);
  EXPECT_EQ(LargestBatch(planner, spec), 0);
}

// Whatever the batch is that micro-batches add up to, and whether or not it is evaluated.
TEST(PlanReport, MicroBatchesTakeWhatABatchOfTheirSizeDoes) {
  for (const char* device : {"T4", "H100-SXM"}) {
    for (const char* mode : {"precision.mode=FP32", "precision.mode=FP16"}) {
      const int64_t small = Bytes(Spec(kMisaligned, {mode, "train.batch_size=4"}), Model(device));
      for (const char* eval : {"data.eval={glyphs: {}}", "name=without"}) {
        const v1::JobSpec cut = Spec(kMisaligned, {mode, eval, "train={batch_size: 128, micro_batch_size: 4}"});
        EXPECT_EQ(Bytes(cut, Model(device)), small) << device << " " << mode << " " << eval;
      }
    }
  }
}

TEST(PlanReport, CountsTheModelThatLooksAtGradients) {
  v1::DeviceModel model = Model("T4");
  const v1::JobSpec plain = Spec(kMisaligned);
  const v1::JobSpec looking = Spec(kMisaligned, {"report.diagnostics_every_steps=10"});
  const auto beside = GradientDiagnostics::Plan(Resolved(looking), kGlyphs, MakeSizingBackend(model), 1);
  ASSERT_TRUE(beside.ok()) << beside.status();
  const int64_t more = (*beside)->parameter_bytes() + (*beside)->activation_bytes() + (*beside)->input_bytes();
  const v1::PlanReport without = Report(plain, model), with = Report(looking, model);
  for (const auto mode : {PrecisionSpec::FP32, PrecisionSpec::FP16}) {
    const v1::ModeEstimate &a = Mode(without, mode), &b = Mode(with, mode);
    EXPECT_EQ(b.total_bytes(),
              b.weight_bytes() + b.gradient_bytes() + b.optimizer_bytes() + b.activation_bytes() + b.workspace_bytes());
    EXPECT_EQ(b.optimizer_bytes(), a.optimizer_bytes()) << "it updates nothing";
    if (with.library().empty()) {
      EXPECT_EQ(b.total_bytes(), a.total_bytes() + more);
    }
    EXPECT_GT(b.total_bytes(), a.total_bytes());
    EXPECT_LT(b.largest_batch(), a.largest_batch());
  }
}

TEST(PlanReport, RulesThatAModeForbidsFallAway) {
  for (const char* dtype : {"TF32", "BF16"}) {
    const v1::PlanReport report =
        Report(Spec(kDense, {"precision={mode: FP16, rules: [{match: a, dtype: " + std::string(dtype) + "}]}"}),
               Model("H100-SXM"));
    ASSERT_EQ(report.modes_size(), 5);
    for (const v1::ModeEstimate& mode : report.modes()) {
      EXPECT_TRUE(mode.supported()) << mode.reason();
      EXPECT_GT(mode.speed_up(), 0) << PrecisionSpec::Mode_Name(mode.mode());
    }
    EXPECT_EQ(Layer(report, "a").dtype_reason(), "rule a") << "of the job's own mode it holds";
  }
}

// Each of two devices takes half of the batch, and updates all parameters.
TEST(PlanReport, AGangsFloorIsThatOfOneDevicesShare) {
  v1::DeviceModel model = Model("H100-SXM");
  model.set_usd_per_hour(2);
  const v1::JobSpec pair = Spec(kDense, {"resources.gpus=2"});
  const v1::JobSpec pieces = Spec(kDense, {"resources.gpus=2", "train.micro_batch_size=8"});
  const v1::JobSpec half = Spec(kDense, {"train.batch_size=32"});
  EXPECT_EQ(Costs(pair, model).seconds, Costs(half, model).seconds);
  EXPECT_EQ(Costs(pair, model).flops, Costs(half, model).flops);
  EXPECT_EQ(Costs(pieces, model).seconds,
            Costs(Spec(kDense, {"train={batch_size: 32, micro_batch_size: 8}"}), model).seconds);
  EXPECT_EQ(Bytes(pair, model), Bytes(half, model));
  // Two devices for as long as one takes for its half.
  const auto price = [&](const v1::JobSpec& spec) {
    return Mode(Report(spec, model, {PrecisionSpec::FP32}), PrecisionSpec::FP32).usd_per_million_samples();
  };
  EXPECT_DOUBLE_EQ(price(pair), price(half));
}

// Its result is large enough to be joined with bias and relu.
constexpr char kConv[] = R"(
model:
  layers:
    - {name: conv, conv2d: {filters: 64, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: pool, global_avg_pool: {}}
    - {name: head, dense: {units: 10}}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
precision: {mode: FP16}
optimizer: {sgd: {}}
train: {batch_size: 128}
)";
constexpr int64_t kMostOfAConvolution = int64_t{256} << 20;

// The library describes and compiles each of its kernels, and would hand out those that it has at no cost.
TEST(PlanReport, CountsWhatACpusLibraryKeepsForItsKernels) {
  const v1::DeviceModel cpu = Model("CPU"), gpu = Model("T4");
  const auto kept = [](const v1::DeviceModel& model, const v1::JobSpec& spec) {
    const auto planned = DevicePlanner(kGlyphs, &model).Plan(Resolved(spec));
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned->kernel_bytes;
  };
  EXPECT_EQ(kept(gpu, Spec(kConv)), 0);
#if defined(AMPD_SANITIZED)
  GTEST_SKIP() << "malloc() is the sanitizer's, which does not tell";
#endif
  const int64_t dense = kept(cpu, Spec(kDense)), conv = kept(cpu, Spec(kConv));
  EXPECT_GT(dense, 0);
  EXPECT_GT(conv, 0);
  EXPECT_LT(std::max(dense, conv), int64_t{16} << 20);
  EXPECT_GT(kept(cpu, Spec(kMisaligned)), conv) << "two convolutions";
  EXPECT_NEAR(kept(cpu, Spec(kConv)), conv, 128 << 10) << "as if none had been planned before";
  const v1::PlanReport report = Report(Spec(kConv), cpu);
  for (const v1::ModeEstimate& mode : report.modes()) {
    if (!mode.supported()) continue;
    EXPECT_EQ(mode.total_bytes(), mode.weight_bytes() + mode.gradient_bytes() + mode.optimizer_bytes() +
                                      mode.activation_bytes() + mode.workspace_bytes());
  }
}

TEST(PlanReport, AsksTheDevicesLibrary) {
  if (CudaPlanLibrary().empty()) GTEST_SKIP() << "built without cuDNN";
  const v1::DeviceModel model = Model("H200");
  const v1::PlanReport report = Report(Spec(kConv), model);
  EXPECT_EQ(report.library(), CudaPlanLibrary());
  EXPECT_EQ(report.library_not_asked(), "");
  EXPECT_EQ(Layer(report, "conv").fused(), "conv2d, bias_add, relu");
  EXPECT_LT(Layer(report, "conv").workspace_bytes(), kMostOfAConvolution);
  const DevicePlanner planner(kGlyphs, &model);
  for (const v1::ModeEstimate& mode : report.modes()) {
    const ResolvedJobSpec spec =
        Resolved(Spec(kConv, {absl::StrCat("precision.mode=", PrecisionSpec::Mode_Name(mode.mode()))}));
    const auto asked = planner.PlanByLibrary(spec), at_most = planner.Plan(spec);
    ASSERT_TRUE(asked.ok()) << asked.status();
    EXPECT_EQ(mode.total_bytes(), TotalBytes(*asked));
    EXPECT_LE(mode.total_bytes(), TotalBytes(*at_most));
    // All but workspace is the same.
    v1::ModeEstimate a, b;
    FillMemory(*asked, &a);
    FillMemory(*at_most, &b);
    EXPECT_EQ(a.weight_bytes(), b.weight_bytes());
    EXPECT_EQ(a.activation_bytes(), b.activation_bytes());
    EXPECT_LT(a.workspace_bytes(), b.workspace_bytes());
  }
}

TEST(PlanReport, NoLibraryIsAskedOfVeryDeepNetworks) {
  v1::JobSpec spec = Spec(kDense);
  const v1::Layer hidden = spec.model().layers(1), head = spec.model().layers(2);
  spec.mutable_model()->mutable_layers()->DeleteSubrange(1, 2);
  for (int i = 0; i < 600; ++i) {
    *spec.mutable_model()->add_layers() = hidden;
    spec.mutable_model()->mutable_layers()->rbegin()->set_name(absl::StrCat("a", i));
    spec.mutable_model()->mutable_layers()->rbegin()->mutable_dense()->set_units(8);
  }
  *spec.mutable_model()->add_layers() = head;
  const v1::PlanReport report = Report(spec, Model("H200"), {PrecisionSpec::FP32});
  EXPECT_EQ(report.library(), "");
  if (CudaPlanLibrary().empty()) GTEST_SKIP() << "built without cuDNN";
  EXPECT_NE(report.library_not_asked().find("steps, more than"), std::string::npos) << report.library_not_asked();
}

// cuDNN's gradient of attention keeps all scores, which is more than the sizing backend expects.
TEST(PlanReport, TheLargestBatchFitsByTheLibraryToo) {
  if (CudaPlanLibrary().empty()) GTEST_SKIP() << "built without cuDNN";
  const v1::JobSpec spec = Spec(R"(
model:
  layers:
    - {name: fold, reshape: {shape: [-1, 1]}}
    - {name: up, dense: {units: 64}}
    - {name: attend, multi_head_attention: {heads: 4}}
    - {name: flat, flatten: {}}
    - {name: head, dense: {units: 10}}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
precision: {mode: FP16}
optimizer: {sgd: {}}
train: {batch_size: 64}
)");
  v1::DeviceModel model = Model("H200");
  for (const int64_t mebibytes : {300, 600, 2000}) {
    SCOPED_TRACE(mebibytes);
    model.set_memory_bytes((mebibytes << 20) + kProcessBytes);
    const v1::PlanReport report = Report(spec, model, {PrecisionSpec::FP16});
    ASSERT_EQ(report.library_not_asked(), "");
    const DevicePlanner planner(kGlyphs, &model);
    const int64_t largest = Mode(report, PrecisionSpec::FP16).largest_batch();
    EXPECT_GT(largest, 0);
    EXPECT_LE(TotalBytes(*planner.PlanByLibrary(*WithBatch(Resolved(spec), largest))), planner.room_bytes());
  }
}

// The device cannot do the mode that the layers are told in.
TEST(PlanReport, LayersOfARefusedModeAreToldLikeTheRest) {
  const v1::PlanReport report = Report(Spec(kConv, {"precision.mode=BF16"}), Model("T4"));
  EXPECT_FALSE(Mode(report, PrecisionSpec::BF16).supported());
  EXPECT_EQ(report.library().empty(), !report.library_not_asked().empty());
  EXPECT_GT(report.layers_size(), 0);
}

TEST(PlanReport, SaysWhyNoLibraryWasAsked) {
  v1::DeviceModel model = Model("H200");
  model.set_multiprocessors(0);
  v1::PlanReport report = Report(Spec(kConv), model);
  EXPECT_EQ(report.library(), "");
  const std::string why = CudaPlanLibrary().empty() ? "built without" : "multiprocessors";
  EXPECT_NE(report.library_not_asked().find(why), std::string::npos) << report.library_not_asked();
  const DevicePlanner planner(kGlyphs, &model);
  EXPECT_EQ(Mode(report, PrecisionSpec::FP16).total_bytes(), TotalBytes(*planner.Plan(Resolved(Spec(kConv)))));
  EXPECT_GE(Layer(report, "conv").workspace_bytes(), kMostOfAConvolution);
  EXPECT_EQ(Layer(report, "conv").fused(), "conv2d, bias_add, relu");
  // A CPU's kernels are the ones that run.
  report = Report(Spec(kConv), Model("CPU"));
  EXPECT_EQ(report.library() + report.library_not_asked(), "");
}

TEST(PlanReport, AsksForSoManyConvolutionsOnly) {
  if (CudaPlanLibrary().empty()) GTEST_SKIP() << "built without cuDNN";
  v1::JobSpec spec = Spec(kConv);
  const v1::Layer last_two[] = {spec.model().layers(1), spec.model().layers(2)};
  for (int i = 0; i < 80; ++i) {
    v1::Layer layer = spec.model().layers(0);
    layer.set_name(absl::StrCat("conv", i));
    layer.mutable_conv2d()->set_filters(8 * (i + 1));
    *spec.mutable_model()->add_layers() = std::move(layer);
  }
  spec.mutable_model()->mutable_layers()->DeleteSubrange(1, 2);
  for (const v1::Layer& layer : last_two) *spec.mutable_model()->add_layers() = layer;
  const v1::DeviceModel model = Model("H200");
  const v1::PlanReport report = Report(spec, model, {PrecisionSpec::FP16});
  EXPECT_EQ(report.library(), "");
  EXPECT_NE(report.library_not_asked().find("more than 120"), std::string::npos) << report.library_not_asked();
  ASSERT_EQ(report.modes_size(), 2);
  // Both as if nothing had been asked.
  for (const v1::ModeEstimate& mode : report.modes()) {
    EXPECT_TRUE(mode.supported()) << mode.reason();
    ASSERT_EQ(ApplySet(&spec, absl::StrCat("precision.mode=", PrecisionSpec::Mode_Name(mode.mode()))),
              absl::OkStatus());
    EXPECT_EQ(mode.total_bytes(), TotalBytes(*DevicePlanner(kGlyphs, &model).Plan(Resolved(spec))));
  }
}

TEST(PlanReport, SpeedUpAndAmdahlAgreeWhereAllIsProducts) {
  // With memory for nothing, the step is its operations.
  v1::DeviceModel model = Model("V100-SXM2");
  model.set_memory_bandwidth(1e30);
  const v1::PlanReport report = Report(Spec(kDense), model, {PrecisionSpec::FP16});
  const v1::ModeEstimate& half = Mode(report, PrecisionSpec::FP16);
  EXPECT_NEAR(half.accelerated_by(), 125 / 15.7, 0.01);
  const double amdahl = 1 / (1 - half.accelerated_share() + half.accelerated_share() / half.accelerated_by());
  EXPECT_NEAR(half.speed_up(), amdahl, 0.05 * amdahl);
  EXPECT_EQ(report.modes_size(), 2) << "FP32 and what was asked for";
  EXPECT_EQ(Mode(report, PrecisionSpec::FP32).speed_up(), 1);
}

TEST(PlanReport, WithoutPeaksThereAreNoTimes) {
  const v1::PlanReport report = Report(Spec(kDense), Model("CPU"));
  for (const v1::LayerCost& layer : report.layers()) {
    EXPECT_EQ(layer.seconds(), 0);
    EXPECT_EQ(layer.bound(), v1::LayerCost::BOUND_UNSPECIFIED);
    EXPECT_GT(layer.bytes(), 0) << layer.layer();
  }
  EXPECT_GT(Mode(report, PrecisionSpec::BF16).total_bytes(), 0);
  EXPECT_TRUE(report.advice().empty());
}

TEST(PlanReport, EqualQuestionsHaveEqualAnswers) {
  const v1::DeviceModel model = Model("L4");
  EXPECT_EQ(Report(Spec(kMisaligned), model).SerializeAsString(), Report(Spec(kMisaligned), model).SerializeAsString());
}

// The job with one piece of advice followed.
v1::JobSpec Following(v1::JobSpec spec, const v1::Advice& advice) {
  EXPECT_EQ(ApplySet(&spec, absl::StrCat(advice.field(), "=", advice.value())), absl::OkStatus());
  return spec;
}

TEST(PlanAdvice, IsRight) {
  const v1::DeviceModel model = Model("A100-SXM-40GB");
  const v1::JobSpec spec = Spec(kMisaligned);
  const StepCosts before = Costs(spec, model);
  const v1::PlanReport report = Report(spec, model);
  std::set<v1::Advice::Kind> kinds;
  for (const v1::Advice& advice : report.advice()) {
    kinds.insert(advice.kind());
    if (advice.field().empty() || advice.kind() == v1::Advice::MODE) continue;
    const v1::JobSpec followed = Following(spec, advice);
    const StepCosts after = Costs(followed, model);
    const double samples = static_cast<double>(Resolved(followed).proto().train().batch_size()) / 33;
    const bool faster = after.seconds / samples < before.seconds;
    const bool denser = after.useful_flops / after.seconds > before.useful_flops / before.seconds;
    EXPECT_TRUE(faster || denser) << advice.text();
  }
  EXPECT_EQ(kinds.count(v1::Advice::ALIGN), 1);
  // Logits are padded from the product to their gradient by the engine itself: there is nothing to gain.
  EXPECT_EQ(kinds.count(v1::Advice::PAD_VOCABULARY), 0);
  EXPECT_EQ(kinds.count(v1::Advice::RAISE_BATCH), 1);
}

// Products of f32 are not padded.
TEST(PlanAdvice, AVocabularyThatNobodyPadsIsToBePadded) {
  const v1::DeviceModel model = Model("A100-SXM-40GB");
  const v1::JobSpec spec = Spec(kMisaligned, {"precision.mode=TF32", "train.batch_size=1024"});
  const StepCosts before = Costs(spec, model);
  const v1::PlanReport report = Report(spec, model);
  int advised = 0;
  for (const v1::Advice& advice : report.advice()) {
    if (advice.kind() != v1::Advice::PAD_VOCABULARY) continue;
    ++advised;
    EXPECT_EQ(advice.field(), "model.layers[6].dense.units");
    const StepCosts after = Costs(Following(spec, advice), model);
    EXPECT_TRUE(after.seconds < before.seconds ||
                after.useful_flops / after.seconds > before.useful_flops / before.seconds)
        << advice.text();
  }
  EXPECT_EQ(advised, 1);
}

TEST(PlanAdvice, FollowedUntilNothingIsMisaligned) {
  const v1::DeviceModel model = Model("A100-SXM-40GB");
  v1::JobSpec spec = Spec(kMisaligned);
  const StepCosts before = Costs(spec, model);
  for (const char* set :
       {"model.layers[0].conv2d.filters=32", "model.layers[2].conv2d.filters=32", "model.layers[5].dense.units=104",
        "model.layers[6].dense.units=50264", "train.batch_size=40"}) {
    ASSERT_EQ(ApplySet(&spec, set), absl::OkStatus());
  }
  const StepCosts after = Costs(spec, model);
  // No product does padding any more.
  EXPECT_EQ(after.useful_flops, after.product_flops);
  EXPECT_LT(before.useful_flops, before.product_flops);
  EXPECT_LT(after.seconds / 40, before.seconds / 33);
  const v1::PlanReport report = Report(spec, model);
  for (const v1::Advice& advice : report.advice()) {
    EXPECT_NE(advice.kind(), v1::Advice::ALIGN) << advice.text();
    EXPECT_NE(advice.kind(), v1::Advice::PAD_VOCABULARY) << advice.text();
  }
}

// As a report tells it, which may have asked a library.
int64_t ReportedBytes(const v1::JobSpec& spec, const v1::DeviceModel& model) {
  return Mode(Report(spec, model, {PrecisionSpec::FP16}), PrecisionSpec::FP16).total_bytes();
}

// What the report advises for memory, tried as the job it makes of `spec`.
void ExpectCutToFit(const v1::JobSpec& spec, const v1::DeviceModel& model) {
  const int64_t room = DevicePlanner(kGlyphs, &model).room_bytes();
  ASSERT_GT(ReportedBytes(spec, model), room);
  const v1::PlanReport report = Report(spec, model, {PrecisionSpec::FP16});
  ASSERT_FALSE(report.advice().empty());
  const v1::Advice& advice = report.advice(0);
  ASSERT_EQ(advice.kind(), v1::Advice::MEMORY);
  ASSERT_EQ(advice.field(), "train.micro_batch_size") << advice.text();
  const v1::JobSpec followed = Following(spec, advice);
  EXPECT_LE(ReportedBytes(followed, model), room) << advice.text();
  EXPECT_EQ(Resolved(followed).proto().train().batch_size(), spec.train().batch_size());
}

TEST(PlanAdvice, AJobThatDoesNotFitIsCutSoThatItDoes) {
  for (const char* device : {"T4", "CPU"}) {
    v1::DeviceModel model = Model(device);
    // With weights and moments, room for a sample, and for many.
    const int64_t one = ReportedBytes(Spec(kMisaligned, {"train={batch_size: 1024, micro_batch_size: 1}"}), model);
    const int64_t left = model.kind() == v1::Device::CUDA ? kProcessBytes : 0;
    for (const int64_t mebibytes : {0, 100}) {
      SCOPED_TRACE(absl::StrCat(device, " ", mebibytes));
      model.set_memory_bytes(one + left + (mebibytes << 20));
      ExpectCutToFit(Spec(kMisaligned, {"train.batch_size=1024", "data.eval={glyphs: {}}"}), model);
    }
    model.set_memory_bytes(one + left - 1);
    const v1::PlanReport report = Report(Spec(kMisaligned, {"train.batch_size=1024"}), model, {PrecisionSpec::FP16});
    EXPECT_EQ(report.advice(0).text().find(" less 512 MiB for the process: ") != std::string::npos, left > 0)
        << report.advice(0).text();
    EXPECT_NE(report.advice(0).text().find("one sample do not fit"), std::string::npos) << report.advice(0).text();
  }
}

TEST(PlanAdvice, AGangsMicroBatchesCutTheShareOfADevice) {
  v1::DeviceModel model = Model("T4");
  // Parts of 200 samples fit; of 480 a device, 160 are the most that cut them evenly.
  model.set_memory_bytes(ReportedBytes(Spec(kMisaligned, {"train={batch_size: 400, micro_batch_size: 200}"}), model) +
                         kProcessBytes);
  const v1::JobSpec spec = Spec(kMisaligned, {"resources.gpus=2", "train.batch_size=960"});
  ExpectCutToFit(spec, model);
  EXPECT_EQ(Report(spec, model, {PrecisionSpec::FP16}).advice(0).value(), "160");
}

TEST(PlanAdvice, AGangsBatchIsRaisedToo) {
  const v1::DeviceModel model = Model("A100-SXM-40GB");
  const v1::JobSpec spec = Spec(kMisaligned, {"resources.gpus=2", "train.batch_size=32"});
  const v1::PlanReport report = Report(spec, model);
  const auto raise = std::find_if(report.advice().begin(), report.advice().end(),
                                  [](const auto& a) { return a.kind() == v1::Advice::RAISE_BATCH; });
  ASSERT_NE(raise, report.advice().end());
  const v1::JobSpec followed = Following(spec, *raise);
  const auto samples = static_cast<double>(Resolved(followed).proto().train().batch_size());
  EXPECT_GE(samples, 64);
  EXPECT_LT(Costs(followed, model).seconds / samples, Costs(spec, model).seconds / 32);
}

// What would be refused is no advice. By PlanJob, which knows how many samples there are.
TEST(PlanAdvice, NoBatchIsLargerThanTheTrainingSet) {
  const v1::DeviceModel model = Model("H100-SXM");
  const auto plan = [&](int64_t samples, int64_t batch, int64_t gpus) {
    const v1::JobSpec spec =
        Spec(kDense, {absl::StrCat("data.train.glyphs.samples=", samples), "precision.mode=FP16",
                      absl::StrCat("train.batch_size=", batch), absl::StrCat("resources.gpus=", gpus)});
    const v1::PlanResponse response = PlanJob(Resolved(spec), {}, "", &model, {PrecisionSpec::FP16});
    EXPECT_EQ(response.errors_size(), 0);
    return response.report();
  };
  const auto advised = [](const v1::PlanReport& report) {
    std::string values;
    for (const v1::Advice& advice : report.advice()) {
      if (advice.field() == "train.batch_size") absl::StrAppend(&values, advice.value(), " ");
    }
    return values;
  };
  EXPECT_EQ(advised(plan(1000, 16, 1)), "128 ");
  EXPECT_EQ(advised(plan(127, 16, 1)), "64 ");
  EXPECT_EQ(advised(plan(20, 16, 1)), "");
  EXPECT_EQ(advised(plan(20, 17, 1)), "") << "24 would be a multiple of 8";
  EXPECT_EQ(advised(plan(127, 32, 2)), "64 ") << "of both devices";
  EXPECT_EQ(Mode(plan(20, 16, 1), PrecisionSpec::FP16).largest_batch(), 20);
  EXPECT_TRUE(Mode(plan(20, 16, 1), PrecisionSpec::FP16).largest_batch_is_all_samples());
  EXPECT_EQ(Mode(plan(127, 32, 2), PrecisionSpec::FP16).largest_batch(), 63);
  EXPECT_TRUE(Mode(plan(127, 32, 2), PrecisionSpec::FP16).largest_batch_is_all_samples());
  // It is the memory that bounds it, or nothing is known of the set.
  EXPECT_FALSE(Mode(plan(int64_t{1} << 31, 16, 1), PrecisionSpec::FP16).largest_batch_is_all_samples());
  EXPECT_FALSE(Mode(Report(Spec(kDense), model), PrecisionSpec::FP16).largest_batch_is_all_samples());
}

TEST(PlanAdvice, NamesTheFasterMode) {
  const v1::JobSpec spec = Spec(kMisaligned, {"precision.mode=FP32"});
  const v1::DeviceModel model = Model("H100-SXM");
  const v1::PlanReport report = Report(spec, model);
  const auto mode = std::find_if(report.advice().begin(), report.advice().end(),
                                 [](const auto& a) { return a.kind() == v1::Advice::MODE; });
  ASSERT_NE(mode, report.advice().end());
  EXPECT_LT(Costs(Following(spec, *mode), model).seconds, Costs(spec, model).seconds);
}

}  // namespace
}  // namespace ampd::train
