// A batch cut into micro-batches has the loss and the gradients of the whole, whatever counts in each part.
#include "engine/train/micro_batches.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/train/planned_model.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kBatch = 8, kFeatures = 3, kClasses = 4;

struct Result {
  double loss = 0;
  std::vector<float> gradients;
};

Result RunPhase(int phase, const std::string& networks, int64_t micro_batch, const std::vector<int32_t>& labels,
                float scale = 1) {
  const ResolvedJobSpec spec =
      Spec({absl::StrCat(networks, "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: ",
                         kBatch, " micro_batch_size: ", micro_batch, " }")});
  auto plan = PlanModel(spec, {.input_shape = {kFeatures}, .classes = kClasses}, MakeBackend("cpu-0", 1).value(), 1);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const std::unique_ptr<LoadedModel> loaded = LoadedModel::Create(**plan).value();
  LoadedModel& model = *loaded;
  EXPECT_TRUE(model.memory.Initialize(3).ok());
  EXPECT_TRUE(model.memory.PublishAll().ok());
  data::Batch batch;
  batch.inputs = Tensor(DType::kF32, {kBatch, kFeatures});
  batch.labels = Tensor(DType::kI32, {kBatch});
  batch.valid = kBatch;
  for (int64_t i = 0; i < kBatch * kFeatures; ++i) batch.inputs.as<float>()[i] = static_cast<float>(i * i % 11) / 5 - 1;
  std::copy(labels.begin(), labels.end(), batch.labels.as<int32_t>().begin());
  const MicroBatches step(plan->get(), &model, kBatch, micro_batch, phase);
  const auto mean = step.Run(batch, runtime::StepState(), scale);
  EXPECT_TRUE(mean.ok()) << mean.status();
  const float* gradients = model.memory.gradients();
  return {*mean, {gradients, gradients + (*plan)->layout.arena_elements()}};
}

Result RunStep(const std::string& loss, int64_t micro_batch, const std::vector<int32_t>& labels, float scale = 1) {
  const std::string model =
      absl::StrCat("model { layers { name: 'head' dense { units: ", kClasses, " } } loss { ", loss, " } }");
  return RunPhase(0, model, micro_batch, labels, scale);
}

void ExpectWhole(const std::string& loss, const std::vector<int32_t>& labels) {
  const Result whole = RunStep(loss, kBatch, labels);
  for (int64_t micro_batch : {1, 2, 4}) {
    const Result parts = RunStep(loss, micro_batch, labels);
    EXPECT_NEAR(parts.loss, whole.loss, 1e-6) << loss << " by " << micro_batch;
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      EXPECT_NEAR(parts.gradients[i], whole.gradients[i], 1e-6) << loss << " by " << micro_batch << ", " << i;
    }
  }
}

TEST(MicroBatches, IgnoredLabelsNeedNotBeSpreadEvenly) {
  // The third and fourth count nowhere, the second half by one label alone.
  ExpectWhole("softmax_cross_entropy { ignore_index: 2 }", {0, 1, 2, 2, 3, 2, -1, 2});
  ExpectWhole("softmax_cross_entropy { ignore_index: 2 label_smoothing: 0.2 }", {2, 1, 2, 2, 3, 0, 1, 1});
}

TEST(MicroBatches, ClassWeightsNeedNotBeSpreadEvenly) {
  ExpectWhole("softmax_cross_entropy { class_weights: [ 0.25, 1, 8, 0 ] }", {0, 0, 2, 2, 1, 3, 0, 2});
  ExpectWhole("softmax_cross_entropy { class_weights: [ 0.25, 1, 8, 0.5 ] ignore_index: 1 label_smoothing: 0.1 }",
              {1, 0, 2, 1, 1, 3, 0, 2});
}

// A plan of one micro-batch a device writes over gradients; run for several it would keep the last one's alone.
TEST(MicroBatches, APlanOfOneIsNotRunForSeveral) {
  const auto plan_for = [](int64_t micro_batch, int64_t replicas) {
    const ResolvedJobSpec spec = Spec({absl::StrCat(
        "model { layers { name: 'head' dense { units: 2 } } loss { softmax_cross_entropy {} } }"
        "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 micro_batch_size: ",
        micro_batch, " }")});
    return PlanModel(spec, {.input_shape = {kFeatures}, .classes = 2}, MakeBackend("cpu-0", 1).value(), 1, Fusion::kAll,
                     {}, replicas)
        .value();
  };
  EXPECT_TRUE(plan_for(8, 1)->phases[0].plans[0].overwrites_gradients);
  EXPECT_FALSE(plan_for(4, 1)->phases[0].plans[0].overwrites_gradients);
  const auto plan = plan_for(4, 2);
  ASSERT_TRUE(plan->phases[0].plans[0].overwrites_gradients);
  const std::unique_ptr<LoadedModel> model = LoadedModel::Create(*plan).value();
  ASSERT_TRUE(model->memory.Initialize(3).ok());
  ASSERT_TRUE(model->memory.PublishAll().ok());
  data::Batch batch;
  batch.inputs = Tensor(DType::kF32, {8, kFeatures});
  batch.labels = Tensor(DType::kI32, {8});
  batch.valid = 8;
  EXPECT_TRUE(MicroBatches(plan.get(), model.get(), 8, 4, 0, {1, 2}).Run(batch, {}, 1).ok());
  const auto both = MicroBatches(plan.get(), model.get(), 8, 4).Run(batch, {}, 1);
  EXPECT_EQ(both.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(both.status().message().find("for 2 micro-batches"), absl::string_view::npos) << both.status();
}

TEST(MicroBatches, OtherLossesCountEverySample) {
  ExpectWhole("softmax_cross_entropy {}", {0, 1, 2, 3, 3, 2, 1, 0});
  ExpectWhole("softmax_cross_entropy { label_smoothing: 0.3 }", {0, 1, 2, 3, 3, 2, 1, 0});
}

TEST(MicroBatches, ABatchInWhichNothingCountsHasNoGradient) {
  const Result nothing = RunStep("softmax_cross_entropy { ignore_index: 1 }", 2, std::vector<int32_t>(kBatch, 1));
  EXPECT_EQ(nothing.loss, 0);
  for (float gradient : nothing.gradients) EXPECT_EQ(gradient, 0);
}

TEST(MicroBatches, TheScaleMultipliesGradientsAlone) {
  const std::string loss = "softmax_cross_entropy { class_weights: [ 1, 2, 3, 4 ] }";
  const std::vector<int32_t> labels = {0, 0, 1, 1, 2, 2, 3, 3};
  const Result one = RunStep(loss, 2, labels), scaled = RunStep(loss, 2, labels, 1024);
  EXPECT_EQ(scaled.loss, one.loss);
  for (size_t i = 0; i < one.gradients.size(); ++i) EXPECT_EQ(scaled.gradients[i], 1024 * one.gradients[i]);
}

// Every loss of a phase divides by the labels that count for it.
TEST(MicroBatches, LossesOfPhasesHaveWeightsOfTheirOwn) {
  const std::string model =
      "model { networks { name: 'a' layers { name: 'fc' dense { units: 4 } } }"
      "        networks { name: 'b' layers { name: 'fc' dense { units: 5 } } } }"
      "phases { name: 'plain' trains: 'a' calls { name: 'a' network: 'a' inputs: 'data' }"
      "  losses { input: 'a' loss { mean_squared_error {} } target: 1 } }"
      "phases { name: 'one' trains: 'a' calls { name: 'a' network: 'a' inputs: 'data' }"
      "  losses { input: 'a' loss { softmax_cross_entropy { ignore_index: 2 } } weight: 3 } }"
      "phases { name: 'several' trains: ['a', 'b'] calls { name: 'a' network: 'a' inputs: 'data' }"
      "  calls { name: 'b' network: 'b' inputs: 'data' }"
      "  losses { input: 'a' loss { softmax_cross_entropy { ignore_index: 1 } } }"
      "  losses { input: 'a' loss { mean_squared_error {} } target: 1 weight: 0.5 }"
      "  losses { input: 'b' loss { softmax_cross_entropy { class_weights: [ 0.25, 1, 8, 0, 1 ] } } weight: 2 } } ";
  for (int phase : {0, 1, 2}) {
    const std::vector<int32_t> labels = {0, 1, 2, 2, 3, 2, -1, 1};
    const Result whole = RunPhase(phase, model, kBatch, labels);
    for (int64_t micro_batch : {1, 2, 4}) {
      const Result parts = RunPhase(phase, model, micro_batch, labels);
      EXPECT_NEAR(parts.loss, whole.loss, 1e-6) << phase << " by " << micro_batch;
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        EXPECT_NEAR(parts.gradients[i], whole.gradients[i], 1e-6) << phase << " by " << micro_batch << ", " << i;
      }
    }
  }
  const Result nothing = RunPhase(1, model, 2, std::vector<int32_t>(kBatch, 2));
  EXPECT_EQ(nothing.loss, 0);
}

}  // namespace
}  // namespace ampd::train
