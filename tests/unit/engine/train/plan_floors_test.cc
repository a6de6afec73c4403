#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/train/plan_report.h"
#include "proto/spec/device_models.h"
#include "tests/unit/engine/train/plan_examples.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

// An entry of docs/planning.md.
v1::DeviceModel CpuWithPeaks() {
  google::protobuf::RepeatedPtrField<v1::DeviceModel> own;
  EXPECT_EQ(ParseYaml("{name: CPU, fp32_flops: 3.0e11, bf16_flops: 2.4e12, memory_bandwidth: 2.0e10, "
                      "usd_per_hour: 0.09}",
                      "model", own.Add()),
            absl::OkStatus());
  const auto models = DeviceModelsWith(own);
  EXPECT_TRUE(models.ok()) << models.status();
  return *FindDeviceModel(*models, "CPU");
}

constexpr char kPerceptron[] = R"(
model: {layers: [{name: a, dense: {units: 1024, activation: RELU}}, {name: b, dense: {units: 1024, activation: RELU}},
                 {name: head, dense: {units: 10}}],
        loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {}}}
optimizer: {sgd: {}}
train: {batch_size: 1024}
)";

v1::PlanReport PerceptronReport(const std::vector<std::string>& sets, const v1::DeviceModel& model,
                                const std::vector<PrecisionSpec::Mode>& modes = {}) {
  const auto report =
      MakePlanReport(Resolved(Spec(kPerceptron, sets)), {.input_shape = {1024}, .classes = 10}, model, modes);
  EXPECT_TRUE(report.ok()) << report.status();
  return *report;
}

std::string AdvisedMode(const v1::PlanReport& report) {
  for (const v1::Advice& advice : report.advice()) {
    if (advice.kind() == v1::Advice::MODE) return advice.value();
  }
  return "";
}

TEST(PlanFloors, ACpusConfiguredPeaksCount) {
  v1::DeviceModel model = CpuWithPeaks();
  const v1::PlanReport report = PerceptronReport({"precision.mode=BF16"}, model);
  for (const char* layer : {"a", "b", "head"}) {
    EXPECT_TRUE(Layer(report, layer).tensor_core_eligible())
        << layer << ": " << Layer(report, layer).tensor_core_reason();
  }
  // A step was measured to be 3.24 times as fast, and modes differ less than their floors do.
  EXPECT_GT(Mode(report, PrecisionSpec::BF16).speed_up(), 3.24);
  EXPECT_LT(Mode(report, PrecisionSpec::BF16).speed_up(), 8);
  EXPECT_EQ(AdvisedMode(report), "") << "it has the fastest";
  EXPECT_EQ(AdvisedMode(PerceptronReport({"precision.mode=FP32"}, model)), "BF16");
  // With memory for nothing products take their operations over their peak, and no tiles of eight.
  model.set_memory_bandwidth(1e30);
  EXPECT_NEAR(Mode(PerceptronReport({}, model), PrecisionSpec::BF16).accelerated_by(), 8, 1e-9);
}

TEST(PlanFloors, WhatACpuEmulatesHasNoFloor) {
  const v1::DeviceModel model = CpuWithPeaks();
  const v1::PlanReport report = PerceptronReport({"precision.mode=FP32"}, model);
  for (const auto mode : {PrecisionSpec::TF32, PrecisionSpec::FP16, PrecisionSpec::FP8}) {
    EXPECT_TRUE(Mode(report, mode).supported());
    EXPECT_GT(Mode(report, mode).total_bytes(), 0);
    EXPECT_EQ(Mode(report, mode).step_seconds(), 0) << PrecisionSpec::Mode_Name(mode);
    EXPECT_EQ(Mode(report, mode).speed_up(), 0);
    EXPECT_FALSE(Mode(report, mode).has_usd_per_million_samples());
  }
  ASSERT_FALSE(report.advice().empty());
  EXPECT_EQ(report.advice(0).kind(), v1::Advice::KIND_UNSPECIFIED);
  EXPECT_EQ(
      report.advice(0).text(),
      "TF32, FP16, FP8: no peak of CPU's is known, so they are taken to be emulated, which can be slower than FP32, "
      "and have no floor; `ampctl bench` measures them");
  EXPECT_EQ(AdvisedMode(PerceptronReport({"precision.mode=FP32"}, model, {PrecisionSpec::FP16})), "");
}

TEST(PlanFloors, LayersThatACpuEmulatesHaveNoFloorEither) {
  v1::DeviceModel model = CpuWithPeaks();
  for (const char* set :
       {"precision.mode=FP16", "precision.mode=FP8", "precision={mode: BF16, rules: [{match: b, dtype: TF32}]}"}) {
    const v1::PlanReport report = PerceptronReport({set}, model);
    for (const v1::LayerCost& layer : report.layers()) {
      EXPECT_EQ(layer.seconds(), 0) << set << " " << layer.layer();
      EXPECT_EQ(layer.bound(), v1::LayerCost::BOUND_UNSPECIFIED) << set << " " << layer.layer();
      EXPECT_GT(layer.bytes(), 0) << set << " " << layer.layer();
    }
    EXPECT_EQ(AdvisedMode(report), "") << set;
  }
  model.set_fp16_flops(2e12);
  EXPECT_GT(Layer(PerceptronReport({"precision.mode=FP16"}, model), "b").seconds(), 0);
}

// A GPU that cannot do what is asked is told to be unable, and no times are invented for it.
TEST(PlanFloors, WhatAGpuCannotDoHasNoFloor) {
  const struct {
    const char* device;
    const char* set;
    const char* note;
  } kCases[] = {
      {"T4", "precision.mode=FP8",
       "T4 cannot do FP8 (precision.mode), so the layers have no floors: FP8 needs compute capability 8.9, T4 has "
       "7.5"},
      {"V100-SXM2", "precision.mode=BF16",
       "V100-SXM2 cannot do BF16 (precision.mode), so the layers have no floors: BF16 needs compute capability "
       "8.0, V100-SXM2 has 7.0"},
      {"T4", "precision={mode: FP16, rules: [{match: b, dtype: BF16}]}",
       "T4 cannot do BF16 (precision.rules[0].dtype), so the layers have no floors: BF16 needs compute capability "
       "8.0, T4 has 7.5"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.set);
    v1::DeviceModel model = Model(c.device);
    model.set_memory_bytes(0);
    const v1::PlanReport report = PerceptronReport({c.set}, model);
    for (const v1::LayerCost& layer : report.layers()) {
      EXPECT_EQ(layer.seconds(), 0) << layer.layer();
      EXPECT_EQ(layer.ridge(), 0) << layer.layer();
      EXPECT_EQ(layer.bound(), v1::LayerCost::BOUND_UNSPECIFIED) << layer.layer();
      EXPECT_GT(layer.bytes(), 0) << layer.layer();
    }
    ASSERT_FALSE(report.advice().empty());
    EXPECT_EQ(report.advice(0).kind(), v1::Advice::KIND_UNSPECIFIED);
    EXPECT_EQ(report.advice(0).text(), c.note);
    EXPECT_GT(Mode(report, PrecisionSpec::FP32).step_seconds(), 0) << "which it can do";
  }
  v1::DeviceModel model = Model("T4");
  model.set_memory_bytes(0);
  EXPECT_EQ(AdvisedMode(PerceptronReport({"precision.mode=FP8"}, model)), "FP16");
  // It does what is asked: there is nothing to say.
  const v1::PlanReport report = PerceptronReport({"precision.mode=FP16"}, model);
  EXPECT_GT(Layer(report, "b").seconds(), 0);
  for (const v1::Advice& advice : report.advice()) EXPECT_EQ(advice.text().find("cannot do"), std::string::npos);
}

// AUTO trains in no mode of which nothing is known, where another is faster than FP32.
TEST(PlanFloors, AutoIsDescribedInAModeThatHasAFloor) {
  const v1::PlanReport report = PerceptronReport({"precision.mode=AUTO"}, CpuWithPeaks());
  EXPECT_GT(Layer(report, "a").seconds(), 0);
  EXPECT_EQ(Layer(report, "a").dtype(), "bf16");
}

constexpr char kSequences[] = R"(
model: {layers: [{name: rnn, lstm: {units: 32, output: LAST_STEP}}, {name: head, dense: {units: 4}}],
        loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {}}}
precision: {mode: FP16}
optimizer: {adam: {}}
train: {batch_size: 32}
)";

models::SampleInfo Sequences(const std::vector<int64_t>& buckets) {
  return {.input_shape = {buckets.back(), 16}, .classes = 4, .lengths = true, .buckets = buckets};
}

double Floor(const std::vector<std::string>& sets, const std::vector<int64_t>& buckets,
             const std::vector<int32_t>& lengths = {}) {
  v1::DeviceModel model = Model("H100-SXM");
  // No batch is looked for that fills it.
  model.set_memory_bytes(0);
  const auto samples = static_cast<int64_t>(lengths.size());
  const auto report = MakePlanReport(Resolved(Spec(kSequences, sets)), Sequences(buckets), model, {}, samples, lengths);
  EXPECT_TRUE(report.ok()) << report.status();
  double layers = 0;
  for (const v1::LayerCost& layer : report->layers()) layers += layer.seconds();
  EXPECT_NEAR(layers, Mode(*report, PrecisionSpec::FP16).step_seconds(), 1e-9 * layers);
  return layers;
}

TEST(PlanFloors, FloorsOfLengthBucketsAreMeansOfTheirBatches) {
  // Three batches of the one, and one of the other, whatever their order is.
  std::vector<int32_t> lengths(96, 5);
  lengths.insert(lengths.end(), 32, 700);
  const double shorter = Floor({}, {8}), longer = Floor({}, {704});
  ASSERT_GT(longer, 2 * shorter);
  const double mean = 0.75 * shorter + 0.25 * longer;
  EXPECT_NEAR(Floor({}, {8, 704}, lengths), mean, 1e-9 * mean);
  EXPECT_NEAR(Floor({"data.shuffle=false"}, {8, 704}, lengths), mean, 1e-9 * mean);
  EXPECT_NEAR(Floor({"train={batch_size: 32, micro_batch_size: 8}"}, {8, 704}, lengths),
              0.75 * Floor({"train={batch_size: 32, micro_batch_size: 8}"}, {8}) +
                  0.25 * Floor({"train={batch_size: 32, micro_batch_size: 8}"}, {704}),
              1e-9 * mean);
  // Of lengths that nobody knows the longest are planned.
  EXPECT_NEAR(Floor({}, {8, 704}), longer, 1e-9 * longer);
}

}  // namespace
}  // namespace ampd::train
