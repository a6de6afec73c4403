// Whole trainings in TF32 and FP8: how close to FP32, what they carry from step to step, what a skip leaves alone.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/safetensors.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Two layers between the first and the last, which FP8 leaves in bf16.
const std::string kDeepNet =
    "model { layers { name: 'conv1' conv2d { filters: 8 kernel: 3 stride: 2 activation: RELU } }"
    "        layers { name: 'conv2' conv2d { filters: 12 kernel: 3 stride: 2 activation: RELU } }"
    "        layers { name: 'flat' flatten {} }"
    "        layers { name: 'hidden' dense { units: 32 activation: RELU } }"
    "        layers { name: 'head' dense { units: 10 } }"
    "        loss { softmax_cross_entropy {} } }";
const std::string kRun =
    "train { batch_size: 32 micro_batch_size: 16 epochs: 4 } report { every_steps: 1 }"
    "optimizer { adam { learning_rate: 0.005 } }";

ResolvedJobSpec DeepSpec(const std::string& precision) { return Spec({kDeepNet, kGlyphs, kRun, precision}); }

std::vector<double> Losses(const std::string& precision) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = Train(DeepSpec(precision), Options(folder.path()), &recorder);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(recorder.skips(), IsEmpty());
  return recorder.losses();
}

double MeanDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b.at(i)) / static_cast<double>(a.size());
  return sum;
}

TEST(LowPrecision, TrainsCloseToFp32) {
  const std::vector<double> fp32 = Losses("precision { mode: FP32 }");
  ASSERT_THAT(fp32, SizeIs(40));
  EXPECT_LT(fp32.back(), 0.7 * fp32.front());
  const std::vector<double> tf32 = Losses("precision { mode: TF32 }");
  EXPECT_GT(MeanDifference(tf32, fp32), 0);
  EXPECT_LT(MeanDifference(tf32, fp32), 0.03);
  const std::vector<double> fp8 = Losses("precision { mode: FP8 }");
  EXPECT_GT(MeanDifference(fp8, Losses("precision { mode: BF16 }")), 0);
  EXPECT_LT(MeanDifference(fp8, fp32), 0.1);
  // Everything in 8 bits.
  EXPECT_LT(MeanDifference(Losses("precision { mode: FP8 rules { match: '*' dtype: FP8 } }"), fp32), 0.1);
}

TEST(LowPrecision, Repeats) {
  for (const char* mode : {"precision { mode: TF32 }", "precision { mode: FP8 }"}) {
    EXPECT_EQ(Losses(mode), Losses(mode)) << mode;
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Losses and every byte of the last checkpoint: masters, moments, histories and scales.
TEST(LowPrecision, Fp8ResumesBitForBit) {
  const ResolvedJobSpec spec = DeepSpec("precision { mode: FP8 } train { epochs: 2 }");
  const ScratchFolder folder;
  Recorder whole;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  for (int64_t stop : {1, 9, 13}) {
    SCOPED_TRACE(stop);
    const ScratchFolder parts;
    Recorder recorder;
    ASSERT_TRUE(Train(spec, Options(parts.path()), &recorder, stop).ok());
    TrainerOptions options = Options(parts.path());
    options.last_reported_step = stop;
    const auto outcome = Train(spec, options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(recorder.losses(), whole.losses());
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string path = "/checkpoints/" + whole.checkpoints().back().checkpoint() + "/" + file;
      EXPECT_FALSE(ReadFile(folder.path() + path).empty());
      EXPECT_EQ(ReadFile(folder.path() + path) == ReadFile(parts.path() + path), true) << file;
    }
  }
}

// PyTorch loads the one file strictly; what it does not know is in the other.
TEST(LowPrecision, ScalesAreKeptBesideTheMoments) {
  const ScratchFolder folder;
  Recorder recorder;
  ASSERT_TRUE(Train(DeepSpec("precision { mode: FP8 }"), Options(folder.path()), &recorder).ok());
  const std::string path = folder.path() + "/checkpoints/" + recorder.checkpoints().back().checkpoint();
  auto model = Safetensors::Parse(ReadFile(path + "/model.safetensors"));
  auto optimizer = Safetensors::Parse(ReadFile(path + "/optimizer.safetensors"));
  ASSERT_TRUE(model.ok() && optimizer.ok());
  EXPECT_EQ(model->entries().size(), 8u);  // weights and biases
  // Two moments each, and history, count and scale of three tensors of two products.
  EXPECT_EQ(optimizer->entries().size(), 16u + 18u);
  const auto count = optimizer->entries().find("conv2.conv2d.grad.amax_count");
  ASSERT_NE(count, optimizer->entries().end());
  int64_t runs = 0;
  std::memcpy(&runs, optimizer->Bytes(count->second).data(), sizeof(runs));
  EXPECT_EQ(runs, 80);  // 40 steps of two micro-batches
}

// The state of a small FP8 model, step by step.
class Steps {
 public:
  Steps()
      : spec_(Spec({"model { layers { name: 'linear' dense { units: 2 } } loss { mean_squared_error {} } }"
                    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 }"
                    "optimizer { sgd { learning_rate: 0.125 } }"
                    "precision { mode: FP8 rules { match: 'linear' dtype: FP8 } }"})),
        plan_(PlanModel(spec_, {.input_shape = {4}, .target_features = 2}, MakeBackend("cpu-0", 1).value(), 1).value()),
        loaded_(LoadedModel::Create(*plan_).value()),
        model_(*loaded_),
        runner_(1000, plan_.get(), &model_),
        scaler_(optim::InitialScalerState(runner_.loss_scale())) {
    batch_.inputs = Tensor(DType::kF32, {8, 4});
    batch_.targets = Tensor(DType::kF32, {8, 2});
    batch_.valid = 8;
    EXPECT_TRUE(model_.memory.Initialize(1).ok());
    for (float& target : batch_.targets.as<float>()) target = 1;
    EXPECT_TRUE(runner_.Prepare().ok());
  }

  StepResult Run(float x) {
    for (float& input : batch_.inputs.as<float>()) input = x;
    auto result = runner_.Run(batch_, &scaler_);
    EXPECT_TRUE(result.ok()) << result.status();
    ++batch_.step;
    return result.value_or(StepResult());
  }
  std::string StateBytes() {
    return std::string(model_.memory.state(), static_cast<size_t>(plan_->layout.state_bytes()));
  }
  float Scalar(const std::string& name) {
    const auto& states = plan_->layout.states();
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].name == name) return *model_.memory.State(static_cast<int32_t>(i)).as<float>();
    }
    ADD_FAILURE() << name;
    return 0;
  }

 private:
  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> loaded_;
  LoadedModel& model_;
  StepRunner runner_;
  optim::LossScalerState scaler_;
  data::Batch batch_;
};

TEST(LowPrecision, ScalesFollowTheLargestMagnitudesOneStepLater) {
  Steps steps;
  EXPECT_EQ(steps.Scalar("linear.matmul.a.scale"), 1);
  EXPECT_TRUE(steps.Run(7).applied());
  EXPECT_EQ(steps.Scalar("linear.matmul.a.scale"), 64);  // 448 / 7
  EXPECT_TRUE(steps.Run(3).applied());
  EXPECT_EQ(steps.Scalar("linear.matmul.a.scale"), 64);
  EXPECT_EQ(steps.Scalar("linear.matmul.a.amax_history"), 7);
}

// At a scale of 1 their gradients would be 0 in 8 bits, as those of a mean loss over many pixels are.
TEST(LowPrecision, AllLayersTrainFromTheFirstStepOn) {
  const auto weights = [](double learning_rate) {
    const ScratchFolder folder;
    Recorder recorder;
    std::string layers = "model { layers { name: 'flat' flatten {} }";
    for (int i = 1; i <= 5; ++i) absl::StrAppend(&layers, "layers { name: 'h", i, "' dense { units: 32 } }");
    absl::StrAppend(&layers, "layers { name: 'head' dense { units: 10 init { normal: 1e-5 } } }",
                    "loss { softmax_cross_entropy {} } }");
    const ResolvedJobSpec spec = Spec({layers, kGlyphs, "train { batch_size: 32 steps: 1 } precision { mode: FP8 }",
                                       absl::StrCat("optimizer { sgd { learning_rate: ", learning_rate, " } }")});
    EXPECT_TRUE(Train(spec, Options(folder.path()), &recorder).ok());
    const std::string path = folder.path() + "/checkpoints/" + recorder.checkpoints().back().checkpoint();
    const auto model = Safetensors::Parse(ReadFile(path + "/model.safetensors"));
    EXPECT_TRUE(model.ok()) << model.status();
    std::map<std::string, std::string> bytes;
    for (const auto& [name, entry] : model->entries()) bytes[name] = std::string(model->Bytes(entry));
    return bytes;
  };
  // So large that no update is lost beside its weight.
  const std::map<std::string, std::string> once = weights(1e5), twice = weights(2e5);
  ASSERT_THAT(once, SizeIs(12));
  for (const auto& [name, bytes] : once) EXPECT_NE(bytes, twice.at(name)) << name;
}

// A loss that is scaled needs no such scale, and would be held at the largest number with it.
TEST(LowPrecision, GradientsOfAScaledLossBeginAtOne) {
  const auto first = [](const std::string& precision) {
    const auto plan =
        PlanModel(DeepSpec(precision), {.input_shape = {8, 8, 1}, .classes = 10}, MakeBackend("cpu-0", 1).value(), 1);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::map<std::string, double> exponents;
    for (const ir::Persistent& state : (*plan)->layout.states()) exponents[state.name] = state.init.bound;
    return exponents;
  };
  EXPECT_EQ(first("precision { mode: FP8 }").at("conv2.conv2d.grad.scale"), 14);
  EXPECT_EQ(first("precision { mode: FP8 }").at("conv2.conv2d.a.scale"), 0);
  EXPECT_EQ(first("precision { mode: FP8 loss_scale { kind: STATIC init: 8 } }").at("conv2.conv2d.grad.scale"), 0);
}

TEST(LowPrecision, ASkippedStepLeavesScalesAlone) {
  Steps steps;
  ASSERT_TRUE(steps.Run(7).applied());
  for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::string before = steps.StateBytes();
    const StepResult result = steps.Run(bad);
    EXPECT_FALSE(result.applied());
    EXPECT_EQ(result.first_non_finite.stage, v1::OverflowSkip::INPUT);
    EXPECT_EQ(steps.StateBytes(), before);
  }
  EXPECT_TRUE(steps.Run(5).applied());
}

std::vector<std::string> LayerTypes(const std::string& precision) {
  const auto response = PlanJob(DeepSpec(precision), {});
  EXPECT_THAT(response.errors(), IsEmpty());
  std::vector<std::string> types;
  for (const v1::LayerPlan& layer : response.plan().layers()) types.push_back(layer.dtype());
  return types;
}

TEST(PlanJob, NamesWhatEachLayerComputesIn) {
  EXPECT_THAT(LayerTypes("precision { mode: TF32 }"), ElementsAre("tf32", "tf32", "f32", "tf32", "tf32"));
  // What is flattened goes on as the 8-bit operand of the layer behind.
  EXPECT_THAT(LayerTypes("precision { mode: FP8 }"), ElementsAre("bf16", "e4m3fn", "e4m3fn", "e4m3fn", "bf16"));
  EXPECT_THAT(
      LayerTypes("precision { mode: FP8 rules { match: 'h*' dtype: BF16 } rules { match: 'conv1' dtype: FP8 } }"),
      ElementsAre("e4m3fn", "e4m3fn", "bf16", "bf16", "bf16"));
  EXPECT_THAT(LayerTypes("precision { mode: FP16 rules { match: 'conv*' dtype: TF32 } rules { match: 'head' } }"),
              ElementsAre("tf32", "tf32", "f32", "f16", "f32"));
}

}  // namespace
}  // namespace ampd::train
