// Jobs of several phases over shared networks: against a loop written out by hand, and what one phase does to another.
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/safetensors.h"
#include "engine/train/checkpoint.h"
#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr int kSteps = 6;
constexpr int64_t kBatch = 4;
constexpr int64_t kNoise = 3;
constexpr int64_t kFeatures = 2;

// A linear generator and a logistic discriminator.
const std::string kNetworks =
    "model { networks { name: 'g' layers { name: 'fc' dense { units: 2 } } }"
    "        networks { name: 'd' layers { name: 'fc' dense { units: 1 } } }"
    "        noise { name: 'z' shape: 3 } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } shuffle: false }"
    "train { batch_size: 4 steps: 6 } checkpoint { every_seconds: 0 keep_last: 99 } report { every_steps: 1 } ";
const std::string kCritic =
    "phases { name: 'critic' trains: 'd' calls { name: 'fake' network: 'g' inputs: 'z' }"
    "  calls { name: 'on_real' network: 'd' inputs: 'data' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 weight: 0.5 }";
const std::string kArtist =
    "phases { name: 'artist' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 }";
const std::string kSgd = "optimizer { sgd { learning_rate: 0.25 } } ";

std::vector<float> RealSamples() {
  std::vector<float> x;
  for (int64_t i = 0; i < kBatch * kFeatures; ++i)
    x.push_back(static_cast<float>(std::sin(3.0 * static_cast<double>(i))));
  return x;
}

void WriteData(const std::string& folder) {
  WriteNpy<float>(folder + "/x.npy", "<f4", {kBatch, kFeatures}, RealSamples());
  WriteNpy<float>(folder + "/y.npy", "<f4", {kBatch, 1}, std::vector<float>(kBatch, 0.0f));
}

using Tensors = std::map<std::string, std::vector<float>>;

Tensors ReadTensors(const std::string& folder, int64_t step, const std::string& file = "model.safetensors") {
  const std::string path = absl::StrCat(folder, "/checkpoints/", CheckpointName(step), "/", file);
  const Safetensors parsed = Safetensors::Parse(*ReadFile(path, 1 << 30)).value();
  Tensors tensors;
  for (const auto& [name, entry] : parsed.entries()) {
    if (entry.dtype != DType::kF32) continue;
    const absl::string_view bytes = parsed.Bytes(entry);
    tensors[name].resize(bytes.size() / 4);
    std::memcpy(tensors[name].data(), bytes.data(), bytes.size());
  }
  return tensors;
}

// The two updates in double, by the formulas.
class ByHand {
 public:
  explicit ByHand(const Tensors& start) {
    const auto take = [&](const char* name, double* to) {
      for (float v : start.at(name)) *to++ = static_cast<double>(v);
    };
    take("g.fc.weight", &wg_[0][0]), take("g.fc.bias", bg_.data()), take("d.fc.weight", wd_.data()),
        take("d.fc.bias", &bd_);
  }

  // Returns the losses of both phases.
  std::array<double, 2> Step(int step) { return {Critic(step), Artist(step)}; }

  void ExpectNear(const Tensors& tensors) const {
    const auto check = [&](const char* name, const double* expected) {
      for (float v : tensors.at(name)) EXPECT_NEAR(static_cast<double>(v), *expected++, 2e-6) << name;
    };
    check("g.fc.weight", &wg_[0][0]), check("g.fc.bias", bg_.data()), check("d.fc.weight", wd_.data());
    check("d.fc.bias", &bd_);
  }

 private:
  static constexpr double kRate = 0.25;

  static double Draw(int step, int64_t n, uint64_t draw) {
    const PhiloxBlock counter =
        RngCounter(static_cast<uint64_t>(step), static_cast<uint32_t>(n), draw, RngStream("z.noise"));
    return static_cast<double>(UniformFloat(Philox4x32(counter, 7)[draw % 4]));
  }
  static double Noise(int step, int64_t n, int64_t e) {
    const auto at = static_cast<uint64_t>(2 * e);
    return std::sqrt(-2 * std::log(1 - Draw(step, n, at))) * std::cos(2 * std::acos(-1.0) * Draw(step, n, at + 1));
  }
  std::array<double, kFeatures> Fake(int step, int64_t n) const {
    std::array<double, kFeatures> y = bg_;
    for (int64_t i = 0; i < kFeatures; ++i) {
      for (int64_t e = 0; e < kNoise; ++e) y[i] += wg_[i][e] * Noise(step, n, e);
    }
    return y;
  }
  double Logit(const std::array<double, kFeatures>& x) const { return wd_[0] * x[0] + wd_[1] * x[1] + bd_; }
  static double Loss(double logit, double target) { return std::log1p(std::exp(logit)) - target * logit; }
  static double Slope(double logit, double target) { return 1 / (1 + std::exp(-logit)) - target; }

  double Critic(int step) {
    const std::vector<float> x = RealSamples();
    double loss = 0, gb = 0;
    std::array<double, kFeatures> gw{};
    for (int64_t n = 0; n < kBatch; ++n) {
      const std::array<double, kFeatures> real = {static_cast<double>(x[2 * n]), static_cast<double>(x[2 * n + 1])};
      const std::array<double, kFeatures> fake = Fake(step, n);
      loss += (Loss(Logit(real), 1) + 0.5 * Loss(Logit(fake), 0)) / kBatch;
      const double on_real = Slope(Logit(real), 1) / kBatch, on_fake = 0.5 * Slope(Logit(fake), 0) / kBatch;
      for (int64_t i = 0; i < kFeatures; ++i) gw[i] += on_real * real[i] + on_fake * fake[i];
      gb += on_real + on_fake;
    }
    for (int64_t i = 0; i < kFeatures; ++i) wd_[i] -= kRate * gw[i];
    bd_ -= kRate * gb;
    return loss;
  }

  double Artist(int step) {
    double loss = 0, gw[kFeatures][kNoise] = {};
    std::array<double, kFeatures> gb{};
    for (int64_t n = 0; n < kBatch; ++n) {
      const double logit = Logit(Fake(step, n));
      loss += Loss(logit, 1) / kBatch;
      for (int64_t i = 0; i < kFeatures; ++i) {
        const double g = Slope(logit, 1) / kBatch * wd_[i];
        for (int64_t e = 0; e < kNoise; ++e) gw[i][e] += g * Noise(step, n, e);
        gb[i] += g;
      }
    }
    for (int64_t i = 0; i < kFeatures; ++i) {
      for (int64_t e = 0; e < kNoise; ++e) wg_[i][e] -= kRate * gw[i][e];
      bg_[i] -= kRate * gb[i];
    }
    return loss;
  }

  double wg_[kFeatures][kNoise];
  std::array<double, kFeatures> bg_;
  std::array<double, kFeatures> wd_;
  double bd_;
};

TEST(Phases, AreTheUpdatesWorkedOutByHand) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const auto spec = Spec({kNetworks, kCritic + "}", kArtist + "}", kSgd, "seed: 7 checkpoint { every_steps: 1 }"});
  Recorder recorder;
  auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(recorder.steps(), SizeIs(kSteps));
  // From the first step's result on; the first step itself is checked by its losses' fall.
  ByHand by_hand(ReadTensors(folder.path(), 1));
  for (int step = 1; step < kSteps; ++step) {
    const std::array<double, 2> losses = by_hand.Step(step);
    const v1::StepReport report = recorder.steps()[static_cast<size_t>(step)];
    ASSERT_EQ(report.phases_size(), 2);
    EXPECT_EQ(report.phases(0).name(), "critic");
    EXPECT_EQ(report.phases(1).name(), "artist");
    for (int p : {0, 1}) EXPECT_NEAR(report.phases(p).loss(), losses[static_cast<size_t>(p)], 1e-6) << step;
    by_hand.ExpectNear(ReadTensors(folder.path(), step + 1));
  }
}

// Phases of one model run by hand.
class Pair {
 public:
  explicit Pair(const std::vector<std::string>& parts)
      : spec_(Spec(parts)),
        plan_(PlanModel(spec_, {.input_shape = {kFeatures}, .target_features = 1}, MakeBackend("cpu-0", 1).value(), 1)
                  .value()),
        loaded_(LoadedModel::Create(*plan_).value()),
        model_(*loaded_) {
    EXPECT_TRUE(model_.memory.Initialize(3).ok());
    batch_.inputs = Tensor(DType::kF32, {kBatch, kFeatures});
    const std::vector<float> x = RealSamples();
    std::copy(x.begin(), x.end(), batch_.inputs.as<float>().begin());
    batch_.targets = Tensor(DType::kF32, {kBatch, 1});
    batch_.valid = kBatch;
    for (size_t i = 0; i < plan_->phases.size(); ++i) {
      runners_.push_back(std::make_unique<StepRunner>(1000, plan_.get(), &model_, static_cast<int>(i)));
      scalers_.push_back(optim::InitialScalerState(runners_.back()->loss_scale()));
      EXPECT_TRUE(runners_.back()->Prepare().ok());
    }
  }

  StepResult Run(size_t phase) {
    auto result = runners_[phase]->Run(batch_, &scalers_[phase]);
    EXPECT_TRUE(result.ok()) << result.status();
    ++batch_.step;
    return result.value_or(StepResult());
  }
  // Everything that an update of the network's parameters changes: masters and moments.
  std::string Of(const std::string& network) {
    std::string all;
    for (size_t i = 0; i < plan_->layout.parameters().size(); ++i) {
      if (plan_->layout.parameters()[i].name.rfind(network + ".", 0) != 0) continue;
      const runtime::ArenaSlot slot = plan_->layout.slots()[i];
      const auto append = [&](const float* arena) {
        all.append(reinterpret_cast<const char*>(arena + slot.offset), static_cast<size_t>(slot.size) * 4);
      };
      append(model_.memory.masters());
      for (int m = 0; m < model_.moments.count(); ++m) append(model_.moments.arena(m));
      if (model_.average.count() > 0) append(model_.average.arena(0));
    }
    EXPECT_FALSE(all.empty());
    return all;
  }
  float State(const std::string& name, int64_t i) {
    const auto& states = plan_->layout.states();
    for (size_t s = 0; s < states.size(); ++s) {
      if (states[s].name == name) return model_.memory.State(static_cast<int32_t>(s)).as<float>()[i];
    }
    ADD_FAILURE() << "no state " << name;
    return 0;
  }
  PlannedModel& plan() { return *plan_; }
  Tensor& inputs() { return batch_.inputs; }

 private:
  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> loaded_;
  LoadedModel& model_;
  data::Batch batch_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<optim::LossScalerState> scalers_;
};

TEST(Phases, ChangeWhatTheyTrainAlone) {
  for (const char* optimizer : {"optimizer { sgd { learning_rate: 0.1 momentum: 0.5 } }",
                                "optimizer { adamw { weight_decay: 0.5 } ema { decay: 0.5 } }",
                                "optimizer { lamb {} } precision { mode: BF16 master_weights: false }",
                                "optimizer { adagrad { initial_accumulator: 1 } } precision { mode: FP16 }"}) {
    SCOPED_TRACE(optimizer);
    Pair pair({kNetworks, kCritic + "}", kArtist + "}", optimizer});
    const std::string g = pair.Of("g"), d = pair.Of("d");
    while (!pair.Run(0).applied()) continue;
    EXPECT_EQ(pair.Of("g"), g);
    EXPECT_NE(pair.Of("d"), d);
    const std::string trained = pair.Of("d");
    while (!pair.Run(1).applied()) continue;
    EXPECT_NE(pair.Of("g"), g);
    EXPECT_EQ(pair.Of("d"), trained);
  }
}

TEST(Phases, MayTrainTheSameParametersWithMomentsOfTheirOwn) {
  const std::string both = "trains: 'd'";
  Pair pair(
      {kNetworks, kCritic + "}", kArtist + both + "optimizer { sgd { momentum: 0.9 } } }", "optimizer { adam {} }"});
  EXPECT_EQ(pair.plan().phases[0].first_moment, 0);
  EXPECT_EQ(pair.plan().phases[1].first_moment, 2);
  EXPECT_EQ(pair.plan().moments, 3);
  EXPECT_THAT(pair.plan().phases[1].parameters, SizeIs(4));
  const std::string d = pair.Of("d");
  ASSERT_TRUE(pair.Run(1).applied());
  EXPECT_NE(pair.Of("d"), d);
  // Phases of which each trains what the other does not share their arenas.
  EXPECT_EQ(Pair({kNetworks, kCritic + "}", kArtist + "}", "optimizer { adam {} }"}).plan().moments, 2);
}

TEST(Phases, TrainWhatGlobsName) {
  Pair pair({kNetworks, kCritic + "}", kArtist + "} ",
             "phases { name: 'tune' trains: '*.bias' calls { name: 'f' network: 'g'"
             " inputs: 'z' } calls { name: 'o' network: 'd' inputs: 'f' }"
             " losses { input: 'o' loss { mean_squared_error {} } target: 2 } }"});
  std::vector<std::string> names;
  for (int32_t i : pair.plan().phases[2].parameters) names.push_back(pair.plan().layout.parameters()[i].name);
  EXPECT_THAT(names, ElementsAre("g.fc.bias", "d.fc.bias"));
}

// What a glob names besides is another phase's business: no decay, no moments, no running average of it here.
TEST(Phases, LeaveNetworksAloneThatTheyDoNotCall) {
  Pair pair({kNetworks, kArtist + "}",
             "phases { name: 'real' trains: '*.weight' calls { name: 'o' network: 'd' inputs: 'data' }"
             " losses { input: 'o' loss { sigmoid_cross_entropy {} } target: 1 } }"
             "optimizer { adamw { weight_decay: 0.5 } ema { decay: 0.5 } }"});
  std::vector<std::string> names;
  for (int32_t i : pair.plan().phases[1].parameters) names.push_back(pair.plan().layout.parameters()[i].name);
  EXPECT_THAT(names, ElementsAre("d.fc.weight"));
  EXPECT_EQ(pair.plan().phases[1].first_moment, 0);
  ASSERT_TRUE(pair.Run(0).applied());
  const std::string g = pair.Of("g"), d = pair.Of("d");
  ASSERT_TRUE(pair.Run(1).applied());
  EXPECT_EQ(pair.Of("g"), g);
  EXPECT_NE(pair.Of("d"), d);
}

// PyTorch's optimizers pass over parameters without a gradient.
TEST(Phases, DoNotDecayWhatNoLossReads) {
  Pair pair({kNetworks, kArtist + "}",
             "phases { name: 'idle' trains: ['d', 'g'] calls { name: 'o' network: 'd' inputs: 'data' }"
             " calls { name: 'unread' network: 'g' inputs: 'z' }"
             " losses { input: 'o' loss { sigmoid_cross_entropy {} } target: 1 } }"
             "optimizer { adamw { weight_decay: 0.5 } }"});
  ASSERT_TRUE(pair.Run(0).applied());
  const std::string g = pair.Of("g"), d = pair.Of("d");
  ASSERT_TRUE(pair.Run(1).applied());
  EXPECT_EQ(pair.Of("g"), g);
  EXPECT_NE(pair.Of("d"), d);
}

// A loss without a gradient for its target says so, where the target is trained; others have one.
TEST(Phases, TrainATargetThroughALossThatHasAGradientForIt) {
  const auto phase = [](const std::string& loss, const std::string& trains) {
    return "phases { name: 'match' trains: [" + trains +
           "] calls { name: 'a' network: 'g' inputs: 'z' }"
           " calls { name: 'b' network: 'd' inputs: 'a' } calls { name: 'c' network: 'd' inputs: 'data' }"
           " losses { input: 'c' loss { " +
           loss + " {} } target_from: 'b' } }";
  };
  Pair pair({kNetworks, phase("mean_squared_error", "'g', 'd'"), kSgd});
  const std::string g = pair.Of("g");
  ASSERT_TRUE(pair.Run(0).applied());
  EXPECT_NE(pair.Of("g"), g);
  const auto planned = [](const ResolvedJobSpec& spec) {
    const models::SampleInfo sample{.input_shape = {kFeatures}, .target_features = 1};
    return models::BuildModel(spec, sample, kBatch, kBatch).status().ToString();
  };
  EXPECT_THAT(planned(Spec({kNetworks, phase("sigmoid_cross_entropy", "'g', 'd'"), kSgd})),
              HasSubstr("[sigmoid_cross_entropy] has no gradient through match.b.fc.bias_add, node"));
}

// Call by call, as PyTorch's modules in training mode do; each call by its own batch's statistics.
TEST(Phases, BatchNormCalledTwiceUpdatesItsStatisticsTwice) {
  const std::string spec =
      "model { networks { name: 'd' layers { name: 'bn' batch_norm { momentum: 0.25 } } layers { name: 'fc' dense { "
      "units: 1 } } }"
      "        noise { name: 'z' shape: 2 distribution: UNIFORM } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 4 }"
      "phases { trains: 'd' calls { name: 'a' network: 'd' inputs: 'data' } calls { name: 'b' network: 'd' inputs: 'z' "
      "}"
      "  losses { input: 'a' loss { mean_squared_error {} } target: 1 }"
      "  losses { input: 'b' loss { mean_squared_error {} } target: -1 } }";
  Pair pair({spec});
  ASSERT_TRUE(pair.Run(0).applied());
  const std::vector<float> x = RealSamples();
  for (int64_t f = 0; f < kFeatures; ++f) {
    double data = 0, noise = 0;
    for (int64_t n = 0; n < kBatch; ++n) {
      data += static_cast<double>(x[static_cast<size_t>(n * kFeatures + f)]) / kBatch;
      const PhiloxBlock counter = RngCounter(0, static_cast<uint32_t>(n), 0, RngStream("z.noise"));
      noise += (2 * static_cast<double>(UniformFloat(Philox4x32(counter, 0)[static_cast<size_t>(f)])) - 1) / kBatch;
    }
    EXPECT_NEAR(static_cast<double>(pair.State("d.bn.running_mean", f)), 0.75 * (0.25 * data) + 0.25 * noise, 1e-6);
  }
  // A step that is not applied commits none of it.
  const float before = pair.State("d.bn.running_mean", 0);
  pair.inputs().as<float>()[0] = INFINITY;
  EXPECT_FALSE(pair.Run(0).applied());
  EXPECT_EQ(pair.State("d.bn.running_mean", 0), before);
}

// The artist with a loss so large that its gradients overflow in fp16 whatever the scale comes to within the job.
std::string Overflowing() {
  std::string artist = kArtist;
  return artist.insert(artist.rfind('}'), " weight: 1e6") + "}";
}

TEST(Phases, ASkipInOneLeavesTheOther) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const auto spec =
      Spec({kNetworks, kCritic + "}", Overflowing(), kSgd, "precision { mode: FP16 } checkpoint { every_steps: 1 }"});
  Recorder recorder;
  auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(recorder.skips(), SizeIs(kSteps));
  for (const v1::OverflowSkip& skip : recorder.skips()) EXPECT_EQ(skip.phase(), "artist");
  for (const v1::LossScaleChange& change : recorder.scale_changes()) EXPECT_EQ(change.phase(), "artist");
  const v1::StepReport last = recorder.steps().back();
  EXPECT_EQ(last.phases(0).steps_applied(), kSteps);
  EXPECT_EQ(last.phases(0).loss_scale(), 65536);
  EXPECT_EQ(last.phases(1).steps_skipped(), kSteps);
  EXPECT_EQ(last.phases(1).loss_scale(), 1024);
  for (int64_t step = 2; step <= kSteps; ++step) {
    const Tensors before = ReadTensors(folder.path(), step - 1), after = ReadTensors(folder.path(), step);
    EXPECT_EQ(before.at("g.fc.weight"), after.at("g.fc.weight"));
    EXPECT_NE(before.at("d.fc.weight"), after.at("d.fc.weight"));
  }
}

class PhasesResume : public testing::TestWithParam<const char*> {};

TEST_P(PhasesResume, BitForBitFromEveryStep) {
  const auto spec =
      Spec({kNetworks, kCritic + "}", kArtist + "every: 2 optimizer { adam { learning_rate: 0.01 } } }", GetParam()});
  const ScratchFolder folder;
  WriteData(folder.path());
  Recorder whole;
  auto outcome = Train(spec, Options(folder.path()), &whole);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(whole.steps(), SizeIs(kSteps));
  for (int64_t stop = 1; stop < kSteps; ++stop) {
    SCOPED_TRACE(stop);
    const ScratchFolder parts;
    WriteData(parts.path());
    Recorder recorder;
    ASSERT_EQ(Train(spec, Options(parts.path()), &recorder, stop).value(), Outcome::kStopped);
    TrainerOptions options = Options(parts.path());
    options.last_reported_step = stop;
    ASSERT_EQ(Train(spec, options, &recorder).value(), Outcome::kCompleted);
    ASSERT_EQ(recorder.steps().size(), whole.steps().size());
    for (size_t i = 0; i < whole.steps().size(); ++i) {
      for (int p : {0, 1}) {
        // NaN where the phase did not run: text compares it.
        v1::PhaseReport a = recorder.steps()[i].phases(p), b = whole.steps()[i].phases(p);
        EXPECT_EQ(a.DebugString(), b.DebugString());
      }
    }
    const std::string manifest = "/checkpoints/step-000000006/MANIFEST";
    EXPECT_EQ(*ReadFile(parts.path() + manifest, 1 << 16), *ReadFile(folder.path() + manifest, 1 << 16));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PhasesResume,
                         testing::Values("optimizer { adamw { learning_rate: 0.02 } ema { decay: 0.9 } }",
                                         "precision { mode: FP16 loss_scale { init: 4e6 growth_interval: 2 } }",
                                         "precision { mode: FP8 }", "precision { mode: BF16 master_weights: false }"));

TEST(Phases, RunEverySoManySteps) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const auto spec = Spec({kNetworks, kCritic + "}", kArtist + "every: 3 }", kSgd, "checkpoint { every_steps: 1 }"});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &recorder).ok());
  for (int64_t step = 1; step <= kSteps; ++step) {
    const v1::StepReport report = recorder.steps()[static_cast<size_t>(step - 1)];
    EXPECT_EQ(report.phases(0).steps_applied(), step);
    EXPECT_EQ(report.phases(1).steps_applied(), step / 3);
    EXPECT_EQ(std::isnan(report.phases(1).loss()), step % 3 != 0);
  }
  EXPECT_EQ(ReadTensors(folder.path(), 1).at("g.fc.weight"), ReadTensors(folder.path(), 2).at("g.fc.weight"));
  EXPECT_NE(ReadTensors(folder.path(), 2).at("g.fc.weight"), ReadTensors(folder.path(), 3).at("g.fc.weight"));
}

TEST(Phases, HaveTheirMomentsInTheCheckpoint) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const auto spec =
      Spec({kNetworks, kCritic + "}", kArtist + "optimizer { sgd { momentum: 0.9 } } }", "optimizer { adam {} }"});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &recorder).ok());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : ReadTensors(folder.path(), kSteps, "optimizer.safetensors")) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("artist.g.fc.bias.m1", "artist.g.fc.weight.m1", "critic.d.fc.bias.m1",
                                 "critic.d.fc.bias.m2", "critic.d.fc.weight.m1", "critic.d.fc.weight.m2"));
}

TEST(Phases, FallBackOneByOne) {
  const ScratchFolder folder;
  WriteData(folder.path());
  std::string artist = Overflowing();
  artist.insert(artist.rfind('}'), " optimizer { sgd { learning_rate: 1e-9 } }");
  const auto spec = Spec({kNetworks, kCritic + "}", artist, kSgd,
                          "precision { mode: FP16 loss_scale { min: 65536 on_floor: FALLBACK_BF16 } }"});
  Recorder recorder;
  auto outcome = Train(spec, Options(folder.path()), &recorder, 3);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  // The mode is in the checkpoint.
  outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  std::vector<std::string> fallen;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_precision_change()) fallen.push_back(event.precision_change().phase());
  }
  EXPECT_THAT(fallen, ElementsAre("artist"));
  const v1::StepReport last = recorder.steps().back();
  EXPECT_EQ(last.phases(0).steps_applied(), kSteps);
  EXPECT_EQ(last.phases(0).loss_scale(), 65536);
  EXPECT_EQ(last.phases(1).steps_applied(), kSteps - 1);
  EXPECT_EQ(last.phases(1).loss_scale(), 1);
}

// The phase that goes on in FP8 keeps its scales of operands.
TEST(Phases, FallBackOneByOneFromFp8) {
  const ScratchFolder folder;
  WriteData(folder.path());
  std::string artist = Overflowing();
  artist.insert(artist.rfind('}'), " optimizer { sgd { learning_rate: 1e-9 } }");
  std::string networks = kNetworks;
  for (const char* output : {"dense { units: 2 }", "dense { units: 1 }"}) {
    const std::string hidden =
        "layers { name: 'in' dense { units: 16 } } layers { name: 'hidden' dense { units: 16 } } ";
    networks.insert(networks.find(absl::StrCat("layers { name: 'fc' ", output)), hidden);
  }
  const auto spec = Spec({networks, kCritic + "}", artist, kSgd,
                          "precision { mode: FP8 loss_scale { kind: DYNAMIC init: 4e35 min: 1e35 max: 4e35"
                          " growth_interval: 1000 on_floor: FALLBACK_BF16 } }"});
  Recorder recorder;
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  std::vector<std::string> fallen;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_precision_change()) fallen.push_back(event.precision_change().phase());
  }
  EXPECT_THAT(fallen, ElementsAre("artist"));
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), kSteps);
  const std::string optimizer = "/checkpoints/step-000000006/optimizer.safetensors";
  const Safetensors file = Safetensors::Parse(*ReadFile(folder.path() + optimizer, 1 << 30)).value();
  EXPECT_FALSE(file.entries().empty());
  for (const auto& [name, entry] : file.entries()) EXPECT_THAT(name, StartsWith("critic."));
}

TEST(Phases, RollBackTogether) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const auto spec = Spec({kNetworks, kCritic + "}", Overflowing(), kSgd,
                          "precision { mode: FP16 loss_scale { min: 65536 on_floor: ROLLBACK max_rollbacks: 2 } }"});
  Recorder recorder;
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("phase artist"));
  ASSERT_THAT(recorder.rewound(), SizeIs(2));
  for (const v1::Rewound& rewound : recorder.rewound()) EXPECT_EQ(rewound.to_step(), 0);
  EXPECT_EQ(recorder.steps().back().last_step(), 1);
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), 1);
}

TEST(Phases, PlansSayWhatEachTrains) {
  const ScratchFolder folder;
  WriteData(folder.path());
  const v1::PlanResponse response = PlanJob(Spec({kNetworks, kCritic + "}", kArtist + "}"}), {folder.path()});
  ASSERT_THAT(response.errors(), IsEmpty()) << response.DebugString();
  ASSERT_EQ(response.plan().phases_size(), 2);
  EXPECT_EQ(response.plan().phases(0).name(), "critic");
  EXPECT_EQ(response.plan().phases(0).parameters(), 3);
  EXPECT_EQ(response.plan().phases(1).parameters(), 8);
  EXPECT_EQ(response.plan().parameters(), 11);
  EXPECT_EQ(response.plan().target_features(), 1);
  EXPECT_THAT(response.plan().label_shape(), IsEmpty());
  EXPECT_EQ(response.plan().activation_bytes(),
            std::max(response.plan().phases(0).activation_bytes(), response.plan().phases(1).activation_bytes()));
  ASSERT_EQ(response.plan().layers_size(), 2);
  EXPECT_EQ(response.plan().layers(0).name(), "g.fc");
  EXPECT_EQ(response.plan().layers(1).ShortDebugString(),
            "name: \"d.fc\" kind: \"dense\" dtype: \"f32\" output_shape: 1 parameters: 3");
}

}  // namespace
}  // namespace ampd::train
