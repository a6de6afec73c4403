// Tensor-core padding on whole trainings: the same curves, and checkpoints that do not know of it.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/safetensors.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "engine/train/training_tensors.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kBatch = 16;
constexpr int64_t kSide = 9;
constexpr int64_t kChannels = 3;
constexpr int64_t kClasses = 10;
constexpr int kSteps = 12;

// A stem of 3 channels, odd widths between norms and dropout, a head of 10 classes.
const std::string kOddNet =
    "model { layers { name: 'stem' conv2d { filters: 13 kernel: 3 activation: RELU } }"
    "        layers { name: 'norm' batch_norm {} }"
    "        layers { name: 'conv' conv2d { filters: 18 kernel: 3 stride: 2 activation: SILU } }"
    "        layers { name: 'flat' flatten {} }"
    "        layers { name: 'hidden' dense { units: 27 activation: RELU } }"
    "        layers { name: 'drop' dropout { rate: 0.1 } }"
    "        layers { name: 'head' dense { units: 10 } }"
    "        loss { softmax_cross_entropy {} } }"
    "data { train { glyphs {} } } train { batch_size: 16 micro_batch_size: 8 }"
    "optimizer { sgd { learning_rate: 0.02 momentum: 0.9 } clip_global_norm: 1 }";

// One training of kOddNet on the CPU.
class Training {
 public:
  Training(const std::string& precision, passes::PaddingPolicy padding)
      : spec_(Spec({kOddNet, precision})),
        plan_(PlanModel(spec_, {.input_shape = {kSide, kSide, kChannels}, .classes = kClasses},
                        MakeCpuBackend(1, padding), 1)
                  .value()),
        loaded_(LoadedModel::Create(*plan_).value()),
        model_(*loaded_),
        runner_(1000, plan_.get(), &model_),
        scaler_(optim::InitialScalerState(runner_.loss_scale())) {
    EXPECT_TRUE(model_.memory.Initialize(7).ok());
    EXPECT_TRUE(runner_.Prepare().ok());
  }

  double Step(int64_t step) {
    const auto result = runner_.Run(RandomBatch({kBatch, kSide, kSide, kChannels}, kClasses, step), &scaler_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->loss : NAN;
  }
  std::vector<double> Steps() {
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) losses.push_back(Step(step));
    return losses;
  }
  // model.safetensors and optimizer.safetensors.
  std::pair<Safetensors, Safetensors> Save() {
    return {File(ModelTensors(&model_.memory)),
            File(OptimizerTensors(&model_.memory, MomentsOf(*plan_, model_.moments)))};
  }
  void Load(const std::pair<Safetensors, Safetensors>& files) {
    EXPECT_TRUE(LoadModel(files.first, &model_.memory).ok());
    EXPECT_TRUE(LoadOptimizer(files.second, &model_.memory, MomentsOf(*plan_, model_.moments)).ok());
    EXPECT_TRUE(runner_.Prepare().ok());
  }
  optim::LossScalerState& scaler() { return scaler_; }
  const PlannedModel& plan() const { return *plan_; }

 private:
  static Safetensors File(const std::vector<TensorSource>& tensors) {
    std::string file;
    EXPECT_TRUE(WriteSafetensors(tensors, [&](absl::string_view bytes) {
                  file.append(bytes.data(), bytes.size());
                  return absl::OkStatus();
                }).ok());
    return Safetensors::Parse(std::move(file)).value();
  }

  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> loaded_;
  LoadedModel& model_;
  StepRunner runner_;
  optim::LossScalerState scaler_;
};

void ExpectSameTensors(const Safetensors& a, const Safetensors& b) {
  ASSERT_EQ(a.entries().size(), b.entries().size());
  for (const auto& [name, entry] : a.entries()) {
    ASSERT_EQ(b.entries().count(name), 1u) << name;
    EXPECT_EQ(entry.dtype, b.entries().at(name).dtype) << name;
    EXPECT_EQ(entry.shape, b.entries().at(name).shape) << name;
  }
}

// L2 norm of what the f32 tensors of two files differ by.
double Distance(const Safetensors& a, const Safetensors& b) {
  double sum = 0;
  for (const auto& [name, entry] : a.entries()) {
    if (entry.dtype != DType::kF32) continue;
    const absl::string_view x = a.Bytes(entry), y = b.Bytes(b.entries().at(name));
    for (size_t i = 0; i + 4 <= x.size(); i += 4) {
      float u, v;
      std::memcpy(&u, x.data() + i, 4);
      std::memcpy(&v, y.data() + i, 4);
      sum += (u - v) * static_cast<double>(u - v);
    }
  }
  return std::sqrt(sum);
}

class PaddedTraining : public testing::TestWithParam<const char*> {};

TEST_P(PaddedTraining, HasTheCurveAndTheCheckpointsOfOneWithout) {
  const std::string mode = std::string("precision { mode: ") + GetParam() + " }";
  Training exact("precision { mode: FP32 }", {}), plain(mode, {}), padded(mode, passes::kTensorCorePadding);
  const std::vector<double> reference = exact.Steps(), losses = plain.Steps(), with = padded.Steps();
  EXPECT_EQ(plain.scaler().steps_skipped, padded.scaler().steps_skipped);
  // Padding may change the order of sums; the mode's own roundings, seen against FP32, are far more than that.
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(with[i], losses[i], 0.25 * std::abs(losses[i] - reference[i]) + 0.002) << "step " << i;
  }
  const auto plain_files = plain.Save(), padded_files = padded.Save();
  ExpectSameTensors(plain_files.first, padded_files.first);
  ExpectSameTensors(plain_files.second, padded_files.second);
  // A sum in another order turns codes of 8 bits over, each by an eighth of its value or a quarter.
  const double share = std::string(GetParam()) == "FP8" ? 0.75 : 0.5;
  EXPECT_LT(Distance(plain_files.first, padded_files.first), share * Distance(plain_files.first, exact.Save().first));

  // Either goes on from the other's checkpoint.
  Training resumed(mode, {});
  resumed.Load(padded_files);
  resumed.scaler() = padded.scaler();
  EXPECT_NEAR(resumed.Step(kSteps), padded.Step(kSteps), 0.002);
  Training widened(mode, passes::kTensorCorePadding);
  widened.Load(plain_files);
  widened.scaler() = plain.scaler();
  EXPECT_NEAR(widened.Step(kSteps), plain.Step(kSteps), 0.002);
}

INSTANTIATE_TEST_SUITE_P(Modes, PaddedTraining, testing::Values("FP16", "BF16", "FP8"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PaddedPlan, IsWhatThePlanWithPaddingDoes) {
  const Training plain("precision { mode: FP16 }", {}), padded("precision { mode: FP16 }", passes::kTensorCorePadding);
  EXPECT_GT(padded.plan().layout.published_bytes(), plain.plan().layout.published_bytes());
  EXPECT_EQ(padded.plan().layout.arena_elements(), plain.plan().layout.arena_elements());
}

// Of a stem of 3 channels: forward, and once more for the gradient of its filters.
TEST(PaddedPlan, RoundsTheBatchAsItPadsIt) {
  const auto spec = Spec({kOddNet, "precision { mode: FP16 } train { micro_batch_size: 16 }"});
  const auto plan = PlanModel(spec, {.input_shape = {64, 64, kChannels}, .classes = kClasses},
                              MakeCpuBackend(1, passes::kTensorCorePadding), 1)
                        .value();
  int pads = 0;
  for (const runtime::PlanStep& step : plan->phases[0].plans[0].steps) {
    if (step.inputs.empty() || step.inputs[0].space != runtime::Space::kInput || step.inputs[0].type.shape.size() != 4)
      continue;
    EXPECT_EQ(step.op, ir::OpKind::kPad) << step.name;
    EXPECT_EQ(step.outputs[0].type, (ir::TensorType{DType::kF16, {16, 64, 64, 8}})) << step.name;
    ++pads;
  }
  EXPECT_EQ(pads, 2);
}

}  // namespace
}  // namespace ampd::train
