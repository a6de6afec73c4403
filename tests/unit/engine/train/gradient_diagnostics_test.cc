// Figures of known distributions, of a network worked out by hand, and against what FP16 jobs then really do.
#include "engine/train/gradient_diagnostics.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/half.h"
#include "engine/passes/widen_gradients.h"
#include "engine/train/spec_configs.h"
#include "engine/train/training_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/small_networks.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::TensorDiagnostics FiguresOf(const std::vector<float>& values, float scale) {
  Fp16Figures figures(scale);
  figures.Add(values);
  return figures.Result();
}

TEST(Fp16Figures, CountsByExponent) {
  const v1::TensorDiagnostics d = FiguresOf(
      {0.25f, -0.4999f, 0.5f, 1, -1.999f, 2, 0, -0.0f, 7.5f, std::numeric_limits<float>::infinity(), std::nanf("")}, 1);
  EXPECT_EQ(d.nonzero(), 7);
  EXPECT_EQ(d.zeros(), 2);
  EXPECT_EQ(d.non_finite(), 2);
  EXPECT_EQ(d.first_exponent(), -2);
  EXPECT_THAT(d.exponent_counts(), ElementsAre(2, 1, 2, 1, 1));
  EXPECT_EQ(d.max_magnitude(), 7.5);
  EXPECT_EQ(d.largest_safe_scale(), 0);  // no scale makes them finite
}

TEST(Fp16Figures, EveryExponentOfFp32HasItsPlace) {
  for (int e = -149; e <= 127; ++e) {
    for (float v : {std::ldexp(1.0f, e), -std::nextafter(std::ldexp(1.0f, e) * 2, 0.0f)}) {
      if (!std::isfinite(v)) continue;  // twice 2^127
      const v1::TensorDiagnostics d = FiguresOf({v}, 1);
      EXPECT_EQ(d.first_exponent(), std::ilogb(v)) << v;
      EXPECT_THAT(d.exponent_counts(), ElementsAre(1)) << v;
    }
  }
}

TEST(Fp16Figures, NothingAndZerosAlone) {
  for (const std::vector<float>& values : {std::vector<float>(), std::vector<float>(5)}) {
    const v1::TensorDiagnostics d = FiguresOf(values, 1024);
    EXPECT_EQ(d.nonzero(), 0);
    EXPECT_EQ(d.zeros(), static_cast<int64_t>(values.size()));
    EXPECT_THAT(d.exponent_counts(), IsEmpty());
    EXPECT_EQ(d.flushed_unscaled(), 0);
    EXPECT_EQ(d.max_magnitude(), 0);
    EXPECT_EQ(d.largest_safe_scale(), 0x1p126);
  }
}

TEST(Fp16Figures, TheBordersOfFp16) {
  // A tie to even, and just above it; multiplied by four neither is flushed.
  const v1::TensorDiagnostics low = FiguresOf({0x1p-25f, std::nextafter(0x1p-25f, 1.0f), 0x1p-27f, 0x1p-24f}, 4);
  EXPECT_EQ(low.flushed_unscaled(), 0.5);
  EXPECT_EQ(low.flushed_scaled(), 0.25);
  EXPECT_EQ(low.overflowed_scaled(), 0);
  const v1::TensorDiagnostics high = FiguresOf({65504, 65519.996f, 65520, 1}, 1);
  EXPECT_EQ(high.overflowed_scaled(), 0.25);
  EXPECT_EQ(high.largest_safe_scale(), 0.5);
  EXPECT_EQ(FiguresOf({65519.996f}, 1).largest_safe_scale(), 1);
  EXPECT_EQ(FiguresOf({1}, 1).largest_safe_scale(), 32768);  // 65536 is not finite in fp16
  EXPECT_EQ(FiguresOf({std::numeric_limits<float>::denorm_min()}, 1).largest_safe_scale(), 0x1p126);
  EXPECT_EQ(FiguresOf({std::numeric_limits<float>::max()}, 1).largest_safe_scale(), 0x1p-113);
}

// Log-uniform over 2^-44..2^20: the shares follow from the distribution, and, value by value, from the conversion.
TEST(Fp16Figures, AgreeWithTheConversionAndTheDistribution) {
  constexpr int kCount = 200000;
  std::mt19937 random(11);
  std::uniform_real_distribution<double> exponent(-44, 20);
  for (float scale : {1.0f, 0x1p10f, 0x1p-6f}) {
    std::vector<float> values;
    int64_t flushed = 0, flushed_scaled = 0, overflowed = 0;
    float max = 0;
    for (int i = 0; i < kCount; ++i) {
      values.push_back(static_cast<float>(std::exp2(exponent(random))) * (i % 2 == 0 ? 1.0f : -1.0f));
      flushed += (ToHalf(values.back()).bits & 0x7fff) == 0 ? 1 : 0;
      const Half scaled = ToHalf(values.back() * scale);
      flushed_scaled += (scaled.bits & 0x7fff) == 0 ? 1 : 0;
      overflowed += std::isinf(ToFloat(scaled)) ? 1 : 0;
      max = std::max(max, std::fabs(values.back()));
    }
    const v1::TensorDiagnostics d = FiguresOf(values, scale);
    EXPECT_EQ(d.flushed_unscaled(), static_cast<double>(flushed) / kCount);
    EXPECT_EQ(d.flushed_scaled(), static_cast<double>(flushed_scaled) / kCount);
    EXPECT_EQ(d.overflowed_scaled(), static_cast<double>(overflowed) / kCount);
    EXPECT_NEAR(d.flushed_unscaled(), 19.0 / 64, 0.01);
    EXPECT_NEAR(d.flushed_scaled(), (19 - std::log2(scale)) / 64, 0.01);
    EXPECT_TRUE(std::isfinite(ToFloat(ToHalf(max * static_cast<float>(d.largest_safe_scale())))));
    EXPECT_TRUE(std::isinf(ToFloat(ToHalf(max * 2 * static_cast<float>(d.largest_safe_scale())))));
    ASSERT_THAT(d.exponent_counts(), SizeIs(64));
    EXPECT_EQ(d.first_exponent(), -44);
    for (int64_t count : d.exponent_counts()) EXPECT_NEAR(static_cast<double>(count), kCount / 64.0, 300);
  }
}

TEST(Fp16Figures, PartsAddUp) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(std::ldexp(1.0f, i % 60 - 40));
  Fp16Figures parts(64);
  parts.Add({values.data(), 333});
  parts.Add({values.data() + 333, 667});
  EXPECT_EQ(parts.Result().SerializeAsString(), FiguresOf(values, 64).SerializeAsString());
}

constexpr int64_t kSamples = 64;

// Inputs of `size` and targets of `size` times a fixed sum, so that gradients are of about size^2.
void WriteData(const std::string& folder, double size) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<float> x, y;
  for (int64_t n = 0; n < kSamples; ++n) {
    double sum = 0;
    for (int f = 0; f < 8; ++f) {
      x.push_back(static_cast<float>(size * normal(random)));
      sum += x.back() * (f - 3);
    }
    y.push_back(static_cast<float>(sum));
  }
  WriteNpy(folder + "/x.npy", "<f4", {kSamples, 8}, x);
  WriteNpy(folder + "/y.npy", "<f4", {kSamples}, y);
}

const std::string kNetwork =
    "model { layers { name: 'a' dense { units: 6 activation: RELU } } layers { name: 'b' dense { units: 1 } }"
    "        loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } report { every_steps: 1 }"
    "optimizer { sgd { learning_rate: 0.01 } } train { batch_size: 32 micro_batch_size: 16 epochs: 5 }";

// One batch's diagnostics of a network whose job is in `mode`.
class OneBatch {
 public:
  OneBatch(const std::string& mode, double size) {
    WriteData(folder_.path(), size);
    spec_ = std::make_unique<ResolvedJobSpec>(Spec({kNetwork, "precision { " + mode + " }"}));
    data_ = TrainingData::Open(*spec_, {folder_.path()}, folder_.path(), 1).value();
    const models::SampleInfo sample = SampleInfoOf(data_->train().info());
    plan_ = PlanModel(*spec_, sample, MakeBackend("cpu-0", 1).value(), 1).value();
    model_ = LoadedModel::Create(*plan_).value();
    EXPECT_TRUE(model_->memory.Initialize(1).ok());
    EXPECT_TRUE(model_->memory.PublishAll().ok());
    loader_ = data_->TrainLoader(plan_->outputs, 0).value();
    batch_ = loader_->Next().value();
    diagnostics_ = GradientDiagnostics::Create(*spec_, sample, MakeBackend("cpu-0", 1).value(), 1).value();
  }

  v1::GradientDiagnostics Diagnose(float scale) {
    auto message = diagnostics_->Run(*batch_, {.seed = 0, .attempted_step = 0}, scale, &model_->memory);
    EXPECT_TRUE(message.ok()) << message.status();
    return message.value_or(v1::GradientDiagnostics());
  }

  // Zeros and infinities that the job itself, in FP16, stores in each gradient tensor when it trains with `scale`.
  std::map<std::string, std::pair<double, bool>> StoredInHalf(float scale) {
    std::map<std::string, std::pair<double, bool>> stored;
    const MicroBatches micro_batches(plan_.get(), model_.get(), 32, 16);
    const auto look = [&](const runtime::PlanStep& step, absl::Span<const TensorView> outputs) {
      if (step.stage != ir::Stage::kGradient || outputs.empty() || outputs[0].dtype != DType::kF16) {
        return absl::OkStatus();
      }
      auto& [zeros, infinite] = stored[step.outputs[0].name];
      for (int64_t i = 0; i < outputs[0].size(); ++i) {
        const float value = ToFloat(outputs[0].as<Half>()[i]);
        zeros += value == 0 ? 1 : 0;
        infinite = infinite || !std::isfinite(value);
      }
      return absl::OkStatus();
    };
    EXPECT_TRUE(micro_batches.Run(*batch_, {}, scale, look).ok());
    return stored;
  }

  runtime::ModelMemory& memory() { return model_->memory; }
  const data::Batch& batch() const { return *batch_; }

 private:
  const ScratchFolder folder_;
  std::unique_ptr<ResolvedJobSpec> spec_;  // not default-constructible
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<data::Loader> loader_;
  data::Batch* batch_ = nullptr;
  std::unique_ptr<GradientDiagnostics> diagnostics_;
};

v1::TensorDiagnostics Named(const v1::GradientDiagnostics& message, const std::string& part) {
  for (const v1::TensorDiagnostics& tensor : message.tensors()) {
    if (tensor.tensor().find(part) != std::string::npos) return tensor;
  }
  ADD_FAILURE() << "no " << part << " in " << message.DebugString();
  return {};
}

// With zero weights the predictions are 0, and the gradient of prediction n is -2 y[n] / 32.
TEST(GradientDiagnostics, OfTheLossAreTheOnesWorkedOutByHand) {
  for (const char* mode : {"mode: FP32", "mode: FP16", "mode: BF16"}) {
    SCOPED_TRACE(mode);
    OneBatch one(mode, 1);
    std::fill_n(one.memory().masters(), one.memory().layout().arena_elements(), 0.0f);
    std::vector<float> expected;
    for (float y : one.batch().targets.as<float>()) expected.push_back(-2 * y / 32);
    v1::TensorDiagnostics by_hand = FiguresOf(expected, 512);
    const v1::TensorDiagnostics found = Named(one.Diagnose(512), "squared_error");
    by_hand.set_tensor(found.tensor());
    EXPECT_EQ(found.SerializeAsString(), by_hand.SerializeAsString()) << found.DebugString() << by_hand.DebugString();
    EXPECT_FALSE(found.of_parameter());
  }
}

TEST(GradientDiagnostics, NameActivationsAndLayers) {
  OneBatch one("mode: FP32", 1);
  const v1::GradientDiagnostics message = one.Diagnose(1024);
  std::vector<std::string> layers;
  for (const v1::TensorDiagnostics& tensor : message.tensors()) {
    layers.push_back(tensor.layer());
    // Products leave the weights' in fp32, and biases are summed there, in every mode.
    EXPECT_FALSE(tensor.of_parameter()) << tensor.tensor();
    EXPECT_GT(tensor.nonzero() + tensor.zeros(), 0) << tensor.tensor();
    EXPECT_GE(tensor.largest_safe_scale(), message.largest_safe_scale());
  }
  EXPECT_THAT(layers, Contains("a"));
  EXPECT_THAT(layers, Contains("b"));
  EXPECT_EQ(message.scale(), 1024);
}

// Every gradient that the same network, planned in FP16, stores in fp16 is among those looked at in fp32.
TEST(GradientDiagnostics, MissNoTensorThatFp16Holds) {
  for (const ampd::testing::SmallNetwork& network : ampd::testing::SmallNetworks()) {
    SCOPED_TRACE(network.name);
    const ResolvedJobSpec spec =
        Spec({"data { train { glyphs {} } } train { batch_size: 4 }", "model { " + network.model + " }"});
    auto plan = PlanModel(spec, network.sample, MakeBackend("cpu-0", 1).value(), 1).value();
    const std::unique_ptr<LoadedModel> loaded = LoadedModel::Create(*plan).value();
    LoadedModel& model = *loaded;
    EXPECT_TRUE(model.memory.Initialize(3).ok());
    auto diagnostics = GradientDiagnostics::Create(spec, network.sample, MakeBackend("cpu-0", 1).value(), 1).value();
    const ir::Graph half =
        passes::WidenGradients(ampd::testing::BuildSmallNetwork(network, "mode: FP16", 4).phases[0].train).value();
    const ampd::testing::GraphInputs in = ampd::testing::RandomInputs(network, half);
    data::Batch batch;
    batch.inputs = ampd::testing::ToTensor(in.inputs.at("x"), DType::kF32);
    if (in.inputs.count("labels") > 0) batch.labels = ampd::testing::ToTensor(in.inputs.at("labels"), DType::kI32);
    if (in.inputs.count("targets") > 0) batch.targets = ampd::testing::ToTensor(in.inputs.at("targets"), DType::kF32);
    const auto message = diagnostics->Run(batch, {}, 1, &model.memory);
    ASSERT_TRUE(message.ok()) << message.status();
    std::vector<std::string> names;
    for (const v1::TensorDiagnostics& tensor : message->tensors()) {
      names.push_back(tensor.tensor());
      EXPECT_EQ(tensor.of_parameter(), absl::EndsWith(tensor.tensor(), ".grad_filter")) << tensor.tensor();
    }
    for (const ir::Node& node : half.nodes) {
      if (node.stage != ir::Stage::kGradient || node.op == ir::OpKind::kCast || node.op == ir::OpKind::kReshape)
        continue;
      for (ir::ValueId v : node.outputs) {
        if (half.type(v).dtype != DType::kF16) continue;
        EXPECT_THAT(names, Contains(half.values[v].name)) << node.name;
      }
    }
  }
}

// What an FP16 job keeps in fp32 by a rule is none of fp16's business.
TEST(GradientDiagnostics, LeaveOutLayersHeldInFp32) {
  OneBatch one("mode: FP16 rules { match: 'a' }", 1);
  const v1::GradientDiagnostics message = one.Diagnose(1);
  EXPECT_GT(message.tensors_size(), 0);
  for (const v1::TensorDiagnostics& tensor : message.tensors()) EXPECT_NE(tensor.layer(), "a");
}

TEST(GradientDiagnostics, LeaveOutLayersHeldInOtherTypes) {
  for (const char* dtype : {"BF16", "TF32"}) {
    OneBatch one(absl::StrCat("mode: FP16 rules { match: 'a' dtype: ", dtype, " }"), 1);
    const v1::GradientDiagnostics message = one.Diagnose(1);
    EXPECT_GT(message.tensors_size(), 0);
    for (const v1::TensorDiagnostics& tensor : message.tensors()) EXPECT_NE(tensor.layer(), "a") << dtype;
  }
}

TEST(GradientDiagnostics, AreTheSameForEveryMode) {
  OneBatch fp32("mode: FP32", 1), fp16("mode: FP16", 1);
  EXPECT_EQ(fp32.Diagnose(64).SerializeAsString(), fp16.Diagnose(64).SerializeAsString());
}

// Inputs and weights of about 2^-12: gradients of 2^-12 at the outputs, 2^-25 in the hidden layer.
TEST(GradientDiagnostics, ForetellWhatAnFp16JobFlushes) {
  OneBatch one("mode: FP16", 0x1p-11);
  for (int64_t i = 0; i < one.memory().layout().arena_elements(); ++i) one.memory().masters()[i] *= 0x1p-8f;
  ASSERT_TRUE(one.memory().PublishAll().ok());
  for (float scale : {1.0f, 16.0f, 0x1p12f}) {
    SCOPED_TRACE(scale);
    const v1::GradientDiagnostics message = one.Diagnose(scale);
    const auto stored = one.StoredInHalf(scale);
    int compared = 0;
    for (const v1::TensorDiagnostics& tensor : message.tensors()) {
      const auto it = stored.find(tensor.tensor());
      if (it == stored.end()) continue;  // the job holds it as a cast of another name
      const double total = static_cast<double>(tensor.nonzero() + tensor.zeros());
      const double foretold = tensor.flushed_scaled() * static_cast<double>(tensor.nonzero()) + tensor.zeros();
      EXPECT_NEAR(it->second.first / total, foretold / total, 0.05) << tensor.tensor();
      ++compared;
    }
    EXPECT_GE(compared, 2);
  }
  const double hidden = Named(one.Diagnose(0x1p12f), "a.relu").flushed_unscaled();
  EXPECT_GT(hidden, 0.1);
  EXPECT_LT(hidden, 0.9);
  EXPECT_LT(Named(one.Diagnose(0x1p12f), "a.relu").flushed_scaled(), 0.01);
}

TEST(GradientDiagnostics, TheLargestSafeScaleIsSafeAndTheNextIsNot) {
  OneBatch one("mode: FP16", 1);
  const float safe = static_cast<float>(one.Diagnose(1).largest_safe_scale());
  EXPECT_GT(safe, 64);
  const auto overflows = [&](float scale) {
    bool any = false;
    for (const auto& [name, figures] : one.StoredInHalf(scale)) any = any || figures.second;
    return any;
  };
  EXPECT_FALSE(overflows(safe));
  EXPECT_TRUE(overflows(2 * safe));
}

std::vector<v1::GradientDiagnostics> DiagnosticsOf(const Recorder& recorder) {
  std::vector<v1::GradientDiagnostics> all;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_gradient_diagnostics()) all.push_back(event.gradient_diagnostics());
  }
  return all;
}

Recorder TrainWith(const std::vector<std::string>& parts, const std::string& data, int64_t stop = 0,
                   const std::string& resume_in = "") {
  const ScratchFolder scratch;
  TrainerOptions options = Options(data);
  options.checkpoint_dir = resume_in.empty() ? scratch.path() : resume_in;
  std::vector<std::string> all = {kNetwork};
  all.insert(all.end(), parts.begin(), parts.end());
  Recorder recorder;
  const auto outcome = Train(Spec(all), options, &recorder, stop);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return recorder;
}

TEST(GradientDiagnostics, ComeEverySoManyStepsAndChangeNothing) {
  const ScratchFolder folder;
  WriteData(folder.path(), 1);
  for (const char* mode : {"precision { mode: FP32 }", "precision { mode: FP16 loss_scale { init: 256 } }"}) {
    SCOPED_TRACE(mode);
    const Recorder without = TrainWith({mode}, folder.path());
    const Recorder with = TrainWith({mode, "report { diagnostics_every_steps: 3 }"}, folder.path());
    EXPECT_THAT(DiagnosticsOf(without), IsEmpty());
    ASSERT_THAT(DiagnosticsOf(with), SizeIs(3));
    EXPECT_EQ(with.losses(), without.losses());
    for (int i = 0; i < 3; ++i) {
      const v1::GradientDiagnostics message = DiagnosticsOf(with)[static_cast<size_t>(i)];
      EXPECT_EQ(message.step(), 3 * (i + 1));
      EXPECT_EQ(message.phase(), "main");
      // A job that scales nothing is told of where FP16 jobs start.
      EXPECT_EQ(message.scale(), std::string(mode).find("FP32") != std::string::npos ? 65536 : 256);
      EXPECT_GE(message.tensors_size(), 3);
    }
  }
}

TEST(GradientDiagnostics, ComeAfterTheReportOfTheirStep) {
  const ScratchFolder folder;
  WriteData(folder.path(), 1);
  const Recorder recorder = TrainWith({"report { diagnostics_every_steps: 4 every_steps: 1000 }"}, folder.path());
  int64_t reported = 0;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_step()) reported = event.step().last_step();
    if (event.has_gradient_diagnostics()) {
      EXPECT_EQ(event.gradient_diagnostics().step(), reported);
    }
  }
  EXPECT_EQ(reported, 10);
}

// The spec's hash leaves reports out: they can be turned on for a resume.
TEST(GradientDiagnostics, AfterAResumeAreThoseOfTheUninterruptedJob) {
  const ScratchFolder folder, parts;
  WriteData(folder.path(), 1);
  const std::string every = "report { diagnostics_every_steps: 5 } precision { mode: FP16 }";
  const Recorder whole = TrainWith({every}, folder.path());
  TrainWith({"precision { mode: FP16 }"}, folder.path(), 7, parts.path());
  const Recorder rest = TrainWith({every}, folder.path(), 0, parts.path());
  ASSERT_THAT(DiagnosticsOf(rest), SizeIs(1));
  EXPECT_EQ(DiagnosticsOf(rest)[0].SerializeAsString(), DiagnosticsOf(whole)[1].SerializeAsString());
}

TEST(GradientDiagnostics, ArePlannedFor) {
  const ScratchFolder folder;
  WriteData(folder.path(), 1);
  const auto bytes = [&](const std::string& report) {
    const auto plan = PlanJob(Spec({kNetwork, report}), {folder.path()});
    EXPECT_THAT(plan.errors(), IsEmpty());
    return std::make_pair(plan.plan().parameter_bytes(), plan.plan().activation_bytes());
  };
  const auto off = bytes(""), on = bytes("report { diagnostics_every_steps: 5 }");
  EXPECT_GT(on.first, off.first);
  EXPECT_GT(on.second, off.second);
}

}  // namespace
}  // namespace ampd::train
