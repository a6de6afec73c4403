// Single steps on a network small enough to know every number: what is skipped, who is blamed, what stays untouched.
#include "engine/train/step_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/half.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/allocation_count.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kBatch = 8;
constexpr int64_t kFeatures = 4;
const std::string kLinear =
    "model { layers { name: 'linear' dense { units: 1 } } loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 } "
    "optimizer { sgd { learning_rate: 0.125 momentum: 0.5 } }";
const std::string kNormed =
    "model { layers { name: 'bn' batch_norm {} } layers { name: 'linear' dense { units: 1 } }"
    "        loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 } ";

// One training, step by step, from zero weights.
class Steps {
 public:
  explicit Steps(const std::vector<std::string>& parts, int64_t outputs = 1)
      : spec_(Spec(parts)),
        plan_(PlanModel(spec_, {.input_shape = {kFeatures}, .target_features = outputs},
                        MakeBackend("cpu-0", 1).value(), 1)
                  .value()),
        loaded_(LoadedModel::Create(*plan_).value()),
        model_(*loaded_),
        runner_(1000, plan_.get(), &model_),
        scaler_(optim::InitialScalerState(runner_.loss_scale())) {
    batch_.inputs = Tensor(DType::kF32, {kBatch, kFeatures});
    batch_.targets = Tensor(DType::kF32, {kBatch, outputs});
    batch_.valid = kBatch;
    SetInputs(1);
    SetTargets(1);
    EXPECT_TRUE(runner_.Prepare().ok());
  }

  // Sample n's input is x * (n + 1) / 8 in feature 0 and 0 elsewhere.
  void SetInputs(float x) {
    for (int64_t n = 0; n < kBatch; ++n) batch_.inputs.as<float>()[n * kFeatures] = x * (static_cast<float>(n) + 1) / 8;
  }
  void SetTargets(float y) {
    for (float& target : batch_.targets.as<float>()) target = y;
  }
  StepResult Run() {
    auto result = runner_.Run(batch_, &scaler_);
    EXPECT_TRUE(result.ok()) << result.status();
    ++batch_.step;
    return result.value_or(StepResult());
  }
  // Past calibration.
  void Calibrate() {
    for (int i = 0; i < 3 && !Run().applied(); ++i) continue;
    ASSERT_EQ(scaler_.steps_applied, 1);
    scaler_.steps_skipped = 0;
  }
  // Everything that an update changes.
  std::string Snapshot() {
    const size_t arena = static_cast<size_t>(plan_->layout.arena_elements()) * 4;
    std::string all(reinterpret_cast<const char*>(model_.memory.masters()), arena);
    for (int i = 0; i < model_.moments.count(); ++i) {
      all.append(reinterpret_cast<const char*>(model_.moments.arena(i)), arena);
    }
    if (model_.average.count() > 0) all.append(reinterpret_cast<const char*>(model_.average.arena(0)), arena);
    all.append(model_.memory.state(), static_cast<size_t>(plan_->layout.state_bytes()));
    return all.append(model_.memory.published(), static_cast<size_t>(plan_->layout.published_bytes()));
  }
  // A step that must be skipped and change nothing.
  NonFinite Skip() {
    const std::string before = Snapshot();
    const StepResult result = Run();
    EXPECT_FALSE(result.applied());
    EXPECT_EQ(Snapshot(), before);
    return result.first_non_finite;
  }
  float* weights() { return model_.memory.masters(); }
  std::vector<float> Masters() { return {weights(), weights() + plan_->layout.arena_elements()}; }
  std::vector<float> Average() {
    const float* average = model_.average.arena(0);
    return {average, average + plan_->layout.arena_elements()};
  }
  float& master(const std::string& name) {
    const auto& parameters = plan_->layout.parameters();
    const auto found =
        std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == name; });
    EXPECT_NE(found, parameters.end()) << name;
    return weights()[plan_->layout.slots()[static_cast<size_t>(found - parameters.begin())].offset];
  }
  LoadedModel& model() { return model_; }
  const PlannedModel& plan() const { return *plan_; }
  void Publish() { ASSERT_TRUE(model_.memory.PublishAll().ok()); }

  optim::LossScalerState& scaler() { return scaler_; }
  data::Batch& batch() { return batch_; }

 private:
  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> loaded_;
  LoadedModel& model_;
  StepRunner runner_;
  optim::LossScalerState scaler_;
  data::Batch batch_;
};

TEST(StepRunner, AnAppliedStepIsTheOneWorkedOutByHand) {
  Steps steps({kLinear, "optimizer { clip_global_norm: 1.25 }"});
  steps.SetInputs(0);
  const StepResult result = steps.Run();
  // Zero weights, inputs 0, targets 1: loss 1; only the bias has a gradient, -2, which clipping makes -1.25.
  EXPECT_TRUE(result.applied());
  EXPECT_EQ(result.loss, 1);
  EXPECT_NEAR(result.gradient_norm, 2, 1e-6);
  EXPECT_EQ(result.learning_rate, 0.125);
  const std::vector<float> changed = steps.Masters();
  EXPECT_NEAR(std::accumulate(changed.begin(), changed.end(), 0.0f), 0.125 * 1.25, 1e-6);
}

TEST(StepRunner, ClippingByValueIsOfUnscaledElements) {
  Steps steps({kLinear, "optimizer { clip_value: 0.75 } precision { loss_scale { kind: STATIC init: 1024 } }"});
  // The bias' gradient is -2; the weight's -2 times the mean input, 9/16.
  const StepResult result = steps.Run();
  EXPECT_NEAR(result.gradient_norm, 2 * std::hypot(1, 9.0 / 16), 1e-6) << "the norm is of what was there before";
  std::vector<float> changed = steps.Masters();
  std::sort(changed.rbegin(), changed.rend());
  EXPECT_NEAR(changed[0], 0.125 * 0.75, 1e-6);
  EXPECT_NEAR(changed[1], 0.125 * 0.75, 1e-6);
}

TEST(StepRunner, GroupsScaleTheRateAndSetTheDecay) {
  // Inputs 0: the weight has no gradient but its decay's, the bias one of -2.
  Steps steps(
      {kLinear,
       "optimizer { sgd { weight_decay: 0.5 } decay_norms_and_biases: false"
       "  groups { match: '*' learning_rate_scale: 7 } groups { match: 'linear.b*' learning_rate_scale: 0.5 } }"});
  steps.SetInputs(0);
  ASSERT_EQ(steps.plan().layout.parameters().size(), 2u);
  float& w = steps.master("linear.weight");
  w = 1;
  steps.Publish();
  steps.Run();
  EXPECT_NEAR(w, 1 - 0.125 * 7 * 0.5, 1e-6);
  EXPECT_NEAR(steps.master("linear.bias"), 0.125 * 0.5 * 2, 1e-6);
}

TEST(StepRunner, TheAverageMovesWithAppliedStepsOnly) {
  Steps steps({kLinear, "optimizer { ema { decay: 0.75 } } precision { mode: FP16 loss_scale { init: 1024 } }"});
  std::vector<double> expected(steps.Masters().size(), 0.0);
  for (int round = 0; round < 6; ++round) {
    if (round == 3) {
      steps.scaler().scale = 0x1p30f;
      steps.Skip();
      steps.scaler().scale = 1024;
    }
    ASSERT_TRUE(steps.Run().applied());
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = 0.75 * expected[i] + 0.25 * steps.Masters()[i];
      EXPECT_NEAR(steps.Average()[i], expected[i], 1e-6);
    }
  }
  EXPECT_GT(steps.master("linear.weight") + steps.master("linear.bias"), 0);
}

TEST(StepRunner, SwappingTheAverageTwiceChangesNothing) {
  Steps steps({kLinear, "optimizer { ema { decay: 0.75 } } precision { mode: FP16 }"});
  steps.Calibrate();
  const std::string before = steps.Snapshot();
  const std::vector<float> average = steps.Average();
  ASSERT_TRUE(steps.model().SwapAverage().ok());
  EXPECT_EQ(steps.Masters(), average);
  EXPECT_NE(steps.Snapshot(), before);
  ASSERT_TRUE(steps.model().SwapAverage().ok());
  EXPECT_EQ(steps.Snapshot(), before);
}

TEST(StepRunner, ScalingLeavesTheUpdateAsItIs) {
  Steps plain({kLinear}), scaled({kLinear, "precision { loss_scale { kind: STATIC init: 1024 } }"});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(plain.Run().gradient_norm, scaled.Run().gradient_norm);
    EXPECT_EQ(plain.Snapshot(), scaled.Snapshot());
  }
}

TEST(StepRunner, AnInputBeyondFp16IsInput) {
  Steps steps({kLinear, "precision { mode: FP16 }"});
  steps.Calibrate();
  const float scale = steps.scaler().scale;
  steps.SetInputs(1e6f);
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::INPUT) << first.tensor;
  EXPECT_EQ(first.kind, v1::OverflowSkip::KIND_INF);
  EXPECT_EQ(steps.scaler().scale, scale);
}

TEST(StepRunner, AnActivationBeyondFp16IsForward) {
  Steps steps({kLinear, "precision { mode: FP16 }"});
  steps.Calibrate();
  const float scale = steps.scaler().scale;
  steps.weights()[0] = 60000;
  steps.Publish();
  steps.SetInputs(1000);
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::FORWARD) << first.tensor;
  EXPECT_EQ(steps.scaler().scale, scale);
}

TEST(StepRunner, ALossBeyondFp32IsLoss) {
  Steps steps({kLinear});
  steps.Calibrate();
  steps.SetTargets(1e25f);
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::LOSS) << first.tensor;
  EXPECT_EQ(first.kind, v1::OverflowSkip::KIND_INF);
}

TEST(StepRunner, AGradientBeyondFp16IsGradientAndLowersTheScale) {
  Steps steps({kLinear, "precision { mode: FP16 }"});
  steps.Calibrate();
  steps.scaler().scale = 0x1p30f;
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::GRADIENT) << first.tensor;
  EXPECT_EQ(steps.scaler().scale, 0x1p29f);
}

TEST(StepRunner, AGradientBehindAForwardPassWithInfinitiesLowersTheScale) {
  // relu makes 0 of the hidden unit's -Inf, which no gradient sees; a mask's infinities are as harmless.
  Steps steps(
      {"model { layers { name: 'hidden' dense { units: 2 activation: RELU } } layers { name: 'out' dense { units: "
       "1 } } loss { mean_squared_error {} } } data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } "
       "train { batch_size: 8 } precision { mode: FP16 }"});
  steps.Calibrate();
  float* hidden = &steps.master("hidden.weight");
  hidden[0] = -60000;
  hidden[kFeatures] = 1e-3f;
  (&steps.master("out.weight"))[1] = 1;
  steps.Publish();
  steps.SetInputs(1000);
  for (float scale : {0x1p40f, 0x1p39f}) {
    steps.scaler().scale = scale;
    const NonFinite first = steps.Skip();
    EXPECT_EQ(first.stage, v1::OverflowSkip::GRADIENT) << first.tensor;
    EXPECT_EQ(steps.scaler().scale, scale / 2);
  }
  steps.scaler().scale = 1;
  EXPECT_TRUE(steps.Run().applied());
}

TEST(StepRunner, ItLowersAScaleBelowOneToo) {
  Steps steps(
      {"model { layers { name: 'hidden' dense { units: 2 activation: RELU } } layers { name: 'out' dense { units: "
       "1 } } loss { mean_squared_error {} } } data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } "
       "train { batch_size: 8 } precision { mode: FP16 loss_scale { init: 1 min: 1e-6 } }"});
  steps.Calibrate();
  float* hidden = &steps.master("hidden.weight");
  hidden[0] = -60000;
  hidden[kFeatures] = 1e-3f;
  (&steps.master("out.weight"))[1] = 1;
  steps.Publish();
  steps.SetInputs(1000);
  // The outputs' gradient is 2 * 2^20 / 8, beyond fp16 at scale 1.
  steps.SetTargets(0x1p20f);
  for (float scale : {1.0f, 0.5f}) {
    steps.scaler().scale = scale;
    const NonFinite first = steps.Skip();
    EXPECT_EQ(first.stage, v1::OverflowSkip::GRADIENT) << first.tensor;
    EXPECT_EQ(steps.scaler().scale, scale / 2);
  }
  steps.scaler().scale = 0x1p-19f;
  EXPECT_TRUE(steps.Run().applied());
}

TEST(StepRunner, ASumOverMicroBatchesBeyondFp32IsReduce) {
  Steps steps({kLinear, "train { micro_batch_size: 4 } precision { loss_scale { kind: STATIC init: 1 } }"});
  steps.Calibrate();
  // Each half's bias gradient is about -5/2 * 2^126, in range; their sum is not.
  steps.SetInputs(0);
  steps.SetTargets(2.5f + steps.master("linear.bias") + steps.master("linear.weight"));
  steps.scaler().scale = 0x1p126f;
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::REDUCE) << first.tensor;
  EXPECT_EQ(first.kind, v1::OverflowSkip::KIND_INF);
}

TEST(StepRunner, ALossThatOverflowsAfterAGradientLeavesTheScale) {
  Steps steps({kLinear, "train { micro_batch_size: 4 } precision { mode: FP16 }"});
  steps.Calibrate();
  // The first half overflows in the gradient, the second in the loss, which no scale cures.
  steps.scaler().scale = 0x1p30f;
  for (int64_t n = kBatch / 2; n < kBatch; ++n) steps.batch().targets.as<float>()[n] = 1e25f;
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::GRADIENT) << first.tensor;
  EXPECT_EQ(steps.scaler().scale, 0x1p30f);
}

TEST(StepRunner, InCalibrationAParameterGradientIsNamedWithoutReplay) {
  Steps steps({kLinear, "precision { mode: FP16 loss_scale { init: 1e9 } }"});
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::GRADIENT);
  EXPECT_THAT(first.tensor, testing::StartsWith("linear."));
  EXPECT_THAT(first.tensor, testing::EndsWith(".grad"));
}

TEST(StepRunner, StatisticsThatOverflowAreNeverCommitted) {
  Steps steps({kNormed});
  steps.Calibrate();
  steps.SetInputs(1e25f);
  const NonFinite first = steps.Skip();
  EXPECT_EQ(first.stage, v1::OverflowSkip::FORWARD) << first.tensor;
}

TEST(StepRunner, EveryModeSkips) {
  for (const char* mode : {"FP32", "FP16", "BF16"}) {
    Steps steps({kNormed, std::string("precision { mode: ") + mode + " }"});
    steps.Calibrate();
    steps.SetInputs(std::numeric_limits<float>::infinity());
    const NonFinite first = steps.Skip();
    EXPECT_EQ(first.stage, v1::OverflowSkip::INPUT) << mode;
    EXPECT_EQ(first.tensor, "x");
    EXPECT_EQ(steps.scaler().steps_skipped, 1);
    EXPECT_EQ(steps.scaler().last_overflow_step, steps.batch().step);
    steps.SetInputs(1);
    EXPECT_TRUE(steps.Run().applied()) << mode;
  }
}

// On a network without matrix products: oneDNN allocates a few small lists of its own for each.
TEST(StepRunner, AnAppliedStepAllocatesNothing) {
  const std::string network =
      "model { layers { batch_norm {} } layers { relu {} } loss { mean_squared_error {} } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 micro_batch_size: 4 } ";
  for (const char* mode : {"FP32", "FP16", "FP32 } optimizer { lamb {} ema {}", "FP32 } optimizer { rmsprop {}"}) {
    Steps steps({network, std::string("precision { mode: ") + mode + " }"}, kFeatures);
    steps.Calibrate();
    const int64_t before = AllocationCount();
    ASSERT_TRUE(steps.Run().applied());
    EXPECT_EQ(AllocationCount() - before, 0) << mode;
  }
}

TEST(StepRunner, MastersAreRoundedWhereAsked) {
  Steps steps({kLinear, "precision { mode: FP16 master_weights: false }"});
  steps.weights()[0] = 1.0f / 3;
  steps.Calibrate();
  for (const float weight : steps.Masters()) EXPECT_EQ(weight, ToFloat(ToHalf(weight)));
}

}  // namespace
}  // namespace ampd::train
