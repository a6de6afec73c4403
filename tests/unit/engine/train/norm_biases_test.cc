// Whole trainings with biases in front of batch norms, against the same networks without any: a bias there changes the
// running mean and nothing else.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kBatch = 8, kSide = 8, kClasses = 4;
constexpr int kSteps = 5;

// Batch norms behind a convolution of as many filters as tensor cores want, one of fewer, and a dense layer. BIAS is
// replaced.
const std::string kModel =
    "model { layers { name: 'a' conv2d { filters: 16 kernel: 3 bias: BIAS } } layers { name: 'an' batch_norm {} }"
    "        layers { relu {} }"
    "        layers { name: 'b' conv2d { filters: 13 kernel: 3 stride: 2 bias: BIAS } }"
    "        layers { name: 'bn' batch_norm {} } layers { relu {} } layers { flatten {} }"
    "        layers { name: 'c' dense { units: 12 bias: BIAS } } layers { name: 'cn' batch_norm { momentum: 0.5 } }"
    "        layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy {} } }"
    "data { train { glyphs {} } } ";

class Training {
 public:
  Training(const std::string& job, bool biased, const models::SampleInfo& sample, passes::PaddingPolicy padding = {})
      : spec_(Spec({absl::StrReplaceAll(job, {{"BIAS", biased ? "true" : "false"}})})),
        plan_(PlanModel(spec_, sample, MakeCpuBackend(1, padding), 1).value()),
        loaded_(LoadedModel::Create(*plan_).value()) {
    EXPECT_TRUE(loaded_->memory.Initialize(7).ok());
    // Nothing may read a gradient that nobody wrote.
    std::memset(loaded_->memory.gradients(), 0xff, static_cast<size_t>(plan_->layout.arena_elements()) * sizeof(float));
    for (size_t i = 0; i < plan_->phases.size(); ++i) {
      runners_.push_back(std::make_unique<StepRunner>(1000, plan_.get(), loaded_.get(), static_cast<int>(i)));
      scalers_.push_back(optim::InitialScalerState(runners_.back()->loss_scale()));
      EXPECT_TRUE(runners_.back()->Prepare().ok());
    }
  }

  // All phases once: the sum of their losses.
  double Step(const data::Batch& batch) {
    double loss = 0;
    for (size_t i = 0; i < runners_.size(); ++i) {
      const auto result = runners_[i]->Run(batch, &scalers_[i]);
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result.ok() && result->applied());
      loss += result.ok() ? result->loss : NAN;
    }
    return loss;
  }
  std::vector<float> Parameter(const std::string& name) {
    return Copy(loaded_->memory.Master(Index(plan_->layout.parameters(), name)));
  }
  std::vector<float> Gradient(const std::string& name) {
    return Copy(loaded_->memory.Gradient(Index(plan_->layout.parameters(), name)));
  }
  std::vector<float> State(const std::string& name) {
    return Copy(loaded_->memory.State(Index(plan_->layout.states(), name)));
  }
  const PlannedModel& plan() const { return *plan_; }

 private:
  static std::vector<float> Copy(TensorView view) { return {view.as<float>(), view.as<float>() + view.size()}; }
  static int32_t Index(const std::vector<ir::Persistent>& all, const std::string& name) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].name == name) return static_cast<int32_t>(i);
    }
    ADD_FAILURE() << name;
    return 0;
  }

  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> loaded_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<optim::LossScalerState> scalers_;
};

struct Case {
  const char* name;
  const char* precision;
  passes::PaddingPolicy padding;
  int64_t micro_batch;
};

class NormBiases : public testing::TestWithParam<Case> {};

// Weights are drawn by name, so both trainings begin with the same ones.
TEST_P(NormBiases, ShowInTheRunningMeanAlone) {
  const std::string job =
      absl::StrCat(kModel, "precision { mode: ", GetParam().precision,
                   " } train { batch_size: 8 micro_batch_size: ", GetParam().micro_batch,
                   " } optimizer { adamw { learning_rate: 0.125 weight_decay: 0.5 } clip_global_norm: 1 }");
  const models::SampleInfo sample{.input_shape = {kSide, kSide, 3}, .classes = kClasses};
  Training with(job, true, sample, GetParam().padding), without(job, false, sample, GetParam().padding);
  EXPECT_EQ(with.plan().phases[0].plans[0].overwrites_gradients, GetParam().micro_batch == kBatch);
  std::vector<std::vector<double>> held;  // of each bias, what the running mean holds of it
  const std::vector<std::pair<std::string, double>> layers = {{"a", 0.1}, {"b", 0.1}, {"c", 0.5}};
  for (const auto& [layer, momentum] : layers) held.emplace_back(with.Parameter(layer + ".bias").size(), 0.0);
  for (int step = 0; step < kSteps; ++step) {
    const data::Batch batch = RandomBatch({kBatch, kSide, kSide, 3}, kClasses, step);
    std::vector<std::vector<float>> before;
    for (const auto& [layer, momentum] : layers) before.push_back(with.Parameter(layer + ".bias"));
    ASSERT_EQ(with.Step(batch), without.Step(batch)) << step;
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto& [layer, momentum] = layers[l];
      const std::vector<float> bias = with.Parameter(layer + ".bias"), gradient = with.Gradient(layer + ".bias");
      const std::vector<float> mean = with.State(layer + "n.running_mean");
      const std::vector<float> plain = without.State(layer + "n.running_mean");
      ASSERT_EQ(bias.size(), mean.size());
      for (size_t c = 0; c < bias.size(); ++c) {
        EXPECT_NE(before[l][c], 0);
        EXPECT_EQ(gradient[c], 0) << layer << c;
        // AdamW with a gradient of zero decays.
        EXPECT_NEAR(bias[c], before[l][c] * (1 - 0.125 * 0.5), 1e-7) << layer << c;
        for (int64_t m = 0; m < kBatch / GetParam().micro_batch; ++m) {
          held[l][c] += momentum * (static_cast<double>(before[l][c]) - held[l][c]);
        }
        EXPECT_NEAR(mean[c], plain[c] + held[l][c], 1e-6) << layer << c;
      }
      EXPECT_EQ(with.State(layer + "n.running_var"), without.State(layer + "n.running_var")) << layer;
      EXPECT_EQ(with.Parameter(layer + ".weight"), without.Parameter(layer + ".weight")) << layer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, NormBiases,
                         testing::Values(Case{"FP32", "FP32", {}, kBatch}, Case{"FP32MicroBatches", "FP32", {}, 4},
                                         Case{"FP16", "FP16", {}, kBatch},
                                         Case{"FP16Padded", "FP16", passes::kTensorCorePadding, kBatch},
                                         Case{"BF16PaddedMicroBatches", "BF16", passes::kTensorCorePadding, 2},
                                         Case{"FP8Padded", "FP8", passes::kTensorCorePadding, kBatch}),
                         [](const auto& info) { return std::string(info.param.name); });

// A critic that is called twice a phase, and by another phase that trains something else: its bias gets zeros of both
// calls where it is trained, and its running mean follows every call.
TEST(NormBiases, OfNetworksThatPhasesShare) {
  const std::string job =
      "model { networks { name: 'g' layers { name: 'fc' dense { units: 3 bias: BIAS } } layers { name: 'n' batch_norm "
      "{} } }"
      "        networks { name: 'd' layers { name: 'fc' dense { units: 5 bias: BIAS } } layers { name: 'n' batch_norm "
      "{} } layers { relu {} } layers { name: 'out' dense { units: 1 } } } noise { name: 'z' shape: 3 } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 }"
      "phases { name: 'critic' trains: 'd' calls { name: 'fake' network: 'g' inputs: 'z' }"
      "  calls { name: 'on_real' network: 'd' inputs: 'data' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
      "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
      "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 } optimizer { sgd { learning_rate: 0.5 "
      "} } }"
      "phases { name: 'artist' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' }"
      "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
      "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 } optimizer { sgd { learning_rate: 0.5 "
      "} } }";
  const models::SampleInfo sample{.input_shape = {3}, .target_features = 1};
  Training with(job, true, sample), without(job, false, sample);
  const std::vector<float> first = with.Parameter("d.fc.bias");
  double held = 0;
  for (int step = 0; step < kSteps; ++step) {
    data::Batch batch = RandomBatch({kBatch, 3}, kClasses, step);
    batch.labels = Tensor(DType::kF32, {kBatch, 1});
    ASSERT_EQ(with.Step(batch), without.Step(batch)) << step;
    for (int call = 0; call < 3; ++call) held += 0.1 * (1 - held);
    EXPECT_EQ(with.Parameter("d.fc.bias"), first);
    EXPECT_EQ(with.Parameter("d.out.weight"), without.Parameter("d.out.weight"));
    EXPECT_EQ(with.Parameter("g.fc.weight"), without.Parameter("g.fc.weight"));
    const std::vector<float> mean = with.State("d.n.running_mean"), plain = without.State("d.n.running_mean");
    for (size_t c = 0; c < mean.size(); ++c) EXPECT_NEAR(mean[c], plain[c] + held * first[c], 1e-6) << c;
  }
}

}  // namespace
}  // namespace ampd::train
