#include "engine/train/benchmark.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/bench_cell.h"
#include "engine/train/measured_run.h"
#include "engine/train/turns.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using v1::PrecisionSpec;

const std::string kBench =
    "precision { mode: FP16 } train { batch_size: 32 } "
    "bench { modes: BF16 modes: FP16 batch_sizes: 16 batch_sizes: 32 steps: 4 warmup_steps: 2 }";

std::vector<v1::BenchCell> CellsIn(const Recorder& recorder) {
  std::vector<v1::BenchCell> cells;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_bench_cell()) cells.push_back(event.bench_cell());
  }
  return cells;
}

// A second a look: every step takes one second, whatever the machine does.
std::function<double()> CountingClock() {
  return [now = 0.0]() mutable { return now += 1; };
}

v1::DeviceModel PricedDevice() {
  v1::DeviceModel device;
  device.set_kind(v1::Device::CPU);
  device.set_fp32_flops(1e9);
  device.set_bf16_flops(4e9);
  device.set_usd_per_hour(3.6);
  return device;
}

TEST(Quantile, Interpolates) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3}, 0.9), 3);
  EXPECT_EQ(Quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({0, 10}, 0.1), 1);
}

TEST(FillTimes, FollowsFromTheMedianAndTheDevice) {
  v1::BenchCell cell;
  cell.set_mode(PrecisionSpec::BF16);
  cell.set_batch_size(50);
  FillTimes({0.5, 0.25, 100}, 1e9, PricedDevice(), &cell);
  EXPECT_EQ(cell.steps(), 3);
  EXPECT_EQ(cell.step_seconds(), 0.5);
  EXPECT_EQ(cell.samples_per_second(), 100);
  EXPECT_EQ(cell.flops_per_second(), 2e9);
  EXPECT_EQ(cell.model_flops_utilization(), 0.5);
  // 3.6 dollars an hour are a tenth of a cent a second.
  EXPECT_DOUBLE_EQ(cell.usd_per_million_steps(), 500);
  EXPECT_DOUBLE_EQ(cell.usd_per_million_samples(), 10);
  v1::BenchCell fp8;
  fp8.set_mode(PrecisionSpec::FP8);
  FillTimes({0.5}, 1e9, PricedDevice(), &fp8);
  EXPECT_FALSE(fp8.has_model_flops_utilization()) << "a device without a unit for the mode";
}

TEST(ModesToMeasure, Fp32IsFirstAndOnce) {
  v1::BenchSpec bench;
  const PrecisionSpec::Mode all[] = {PrecisionSpec::TF32, PrecisionSpec::BF16};
  EXPECT_THAT(ModesToMeasure(bench.modes(), absl::nullopt, all),
              ElementsAre(PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::BF16));
  v1::DeviceModel t4 = PricedDevice();
  t4.set_kind(v1::Device::CUDA);
  t4.clear_bf16_flops();
  EXPECT_THAT(ModesToMeasure(bench.modes(), t4, all), ElementsAre(PrecisionSpec::FP32));
  bench.add_modes(PrecisionSpec::BF16);
  bench.add_modes(PrecisionSpec::FP32);
  EXPECT_THAT(ModesToMeasure(bench.modes(), t4, all), ElementsAre(PrecisionSpec::FP32, PrecisionSpec::BF16));
}

TEST(InMode, RulesAndScalesFollow) {
  const auto spec =
      Spec({kConvNet, kGlyphs,
            "precision { mode: FP16 rules { match: 'conv1' dtype: FP16 } rules { match: 'bn1' dtype: BF16 }"
            "  rules { match: 'head' dtype: FP32 } loss_scale { init: 8 } }"
            "train { batch_size: 64 micro_batch_size: 16 }"});
  const auto bf16 = InMode(spec, PrecisionSpec::BF16, 32);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_EQ(bf16->proto().precision().loss_scale().kind(), v1::LossScaleSpec::NONE);
  ASSERT_EQ(bf16->proto().precision().rules_size(), 3);
  EXPECT_EQ(bf16->proto().precision().rules(0).dtype(), PrecisionSpec::BF16);
  EXPECT_EQ(bf16->proto().train().batch_size(), 32);
  EXPECT_EQ(bf16->proto().train().micro_batch_size(), 16);
  EXPECT_FALSE(bf16->proto().data().has_eval());
  const auto fp32 = InMode(spec, PrecisionSpec::FP32, 8);
  ASSERT_TRUE(fp32.ok()) << fp32.status();
  EXPECT_EQ(fp32->proto().precision().rules_size(), 2) << "none may be less precise than the mode";
  EXPECT_EQ(fp32->proto().train().micro_batch_size(), 8);
  const auto fp16 = InMode(spec, PrecisionSpec::FP16, 64);
  EXPECT_EQ(fp16->proto().precision().loss_scale().init(), 8);
  const auto scaled = InMode(Spec({kConvNet, kGlyphs}), PrecisionSpec::FP16, 64);
  EXPECT_EQ(scaled->proto().precision().loss_scale().kind(), v1::LossScaleSpec::DYNAMIC);
}

TEST(Benchmark, MeasuresEveryModeAtEveryBatch) {
  const ScratchFolder folder;
  Recorder recorder;
  TrainerOptions options = Options(folder.path());
  options.clock = CountingClock();
  options.device_model = PricedDevice();
  const auto outcome = Train(Spec({kConvNet, kGlyphs, kBench}), options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  const std::vector<v1::BenchCell> cells = CellsIn(recorder);
  ASSERT_EQ(cells.size(), 6u);
  const PrecisionSpec::Mode modes[] = {PrecisionSpec::FP32, PrecisionSpec::BF16, PrecisionSpec::FP16};
  for (size_t i = 0; i < cells.size(); ++i) {
    const v1::BenchCell& cell = cells[i];
    SCOPED_TRACE(cell.DebugString());
    EXPECT_EQ(cell.mode(), modes[i % 3]);
    EXPECT_EQ(cell.batch_size(), i < 3 ? 16 : 32);
    EXPECT_EQ(cell.index(), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(cell.total(), 6);
    EXPECT_EQ(cell.steps(), 4);
    // Whatever of the second the loader was waited for is left out.
    EXPECT_LE(cell.step_seconds(), 1);
    EXPECT_GT(cell.step_seconds(), 0.5);
    EXPECT_GT(cell.peak_memory_bytes(), 0);
    EXPECT_GT(cell.flops_per_second(), 0);
    EXPECT_TRUE(cell.has_usd_per_million_samples());
    EXPECT_NEAR(cell.loss_gap(), 0, 0.05);
    EXPECT_EQ(cell.has_underflow_share(), cell.mode() == PrecisionSpec::FP16);
  }
  EXPECT_EQ(cells[0].loss_gap(), 0);
  EXPECT_EQ(cells[0].speed_up(), 1);
  EXPECT_NE(cells[1].loss(), cells[0].loss()) << "BF16 rounds";
  EXPECT_THAT(recorder.checkpoints(), testing::IsEmpty());
}

// The measured losses are those of the job's own training in that mode.
TEST(Benchmark, TakesTheJobsOwnSteps) {
  const ScratchFolder folder;
  Recorder bench, plain;
  ASSERT_TRUE(
      Train(Spec({kConvNet, kGlyphs, "train { batch_size: 32 } bench { modes: BF16 steps: 4 warmup_steps: 2 }"}),
            Options(folder.path()), &bench)
          .ok());
  ASSERT_TRUE(
      Train(Spec({kConvNet, kGlyphs, "train { batch_size: 32 } report { every_steps: 1 } precision { mode: BF16 }"}),
            Options(folder.path()), &plain)
          .ok());
  EXPECT_DOUBLE_EQ(CellsIn(bench)[1].loss(), plain.MeanLoss(2, 4));
}

TEST(Benchmark, TakesAJobThatKeepsItsBestAsItIs) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, kBench, "checkpoint { keep_best: 'accuracy' }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(CellsIn(recorder).size(), 6u);
  for (const v1::BenchCell& cell : CellsIn(recorder)) EXPECT_FALSE(cell.has_failure()) << cell.DebugString();
  EXPECT_TRUE(recorder.checkpoints().empty());
}

// Of networks that train against each other: always the same one's, though the first in the file runs every third step.
TEST(Benchmark, TellsTheLossOfOnePhase) {
  const std::string job =
      "model { networks { name: 'g' layers { dense { units: 2 } } }"
      "        networks { name: 'd' layers { dense { units: 1 } } }"
      "        noise { name: 'z' shape: 3 } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } optimizer { sgd { learning_rate: 0.25 } }"
      "phases { name: 'critic' every: 3 trains: 'd' calls { name: 'on' network: 'd' inputs: 'data' }"
      "  losses { input: 'on' weight: 9 loss { sigmoid_cross_entropy {} } target: 1 } }"
      "phases { name: 'artist' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' }"
      "  calls { name: 'on' network: 'd' inputs: 'fake' }"
      "  losses { input: 'on' loss { sigmoid_cross_entropy {} } target: 1 } }"
      "train { batch_size: 4 steps: 7 } report { every_steps: 1 }";
  const ScratchFolder folder;
  WriteNpy<float>(folder.path() + "/x.npy", "<f4", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  WriteNpy<float>(folder.path() + "/y.npy", "<f4", {4, 1}, {0, 0, 0, 0});
  Recorder bench, plain;
  ASSERT_TRUE(
      Train(Spec({job, "bench { modes: FP32 steps: 6 warmup_steps: 1 }"}), Options(folder.path()), &bench).ok());
  ASSERT_TRUE(Train(Spec({job}), Options(folder.path()), &plain).ok());
  double sum = 0;
  for (const v1::StepReport& step : plain.steps()) {
    for (const v1::PhaseReport& phase : step.phases()) {
      if (step.last_step() > 1 && phase.name() == "artist") sum += phase.loss();
    }
  }
  EXPECT_DOUBLE_EQ(CellsIn(bench)[0].loss(), sum / 6);
}

// Notes what is in memory at once.
class CountedContender : public Contender {
 public:
  CountedContender(int* loaded, int* most) : loaded_(loaded), most_(most) {}
  absl::Status Plan() override { return absl::OkStatus(); }
  int64_t bytes() const override { return 1; }
  const runtime::Memory& memory() const override { return *runtime::HostMemory(); }
  absl::Status Load() override {
    *most_ = std::max(*most_, ++*loaded_);
    return absl::OkStatus();
  }
  absl::Status Advance() override {
    ++steps_;
    return absl::OkStatus();
  }
  bool done() const override { return steps_ == 3; }
  absl::Status Finish(v1::BenchCell* cell) override {
    cell->set_steps(steps_);
    return absl::OkStatus();
  }
  void Unload() override { --*loaded_; }

 private:
  int* const loaded_;
  int* const most_;
  int64_t steps_ = 0;
};

TEST(Turns, WhoSharesADeviceLoadsOneModeAtATime) {
  for (const bool alone : {false, true}) {
    int loaded = 0, most = 0;
    std::vector<std::string> warnings;
    std::vector<std::unique_ptr<Contender>> contenders;
    for (int i = 0; i < 4; ++i) contenders.push_back(std::make_unique<CountedContender>(&loaded, &most));
    std::vector<v1::BenchCell> cells(contenders.size());
    TurnOptions options;
    options.what = "batch 8";
    options.stop = [] { return false; };
    options.on_step = [] {};
    options.warn = [&](const std::string& text) {
      warnings.push_back(text);
      return absl::OkStatus();
    };
    options.one_at_a_time = alone;
    ASSERT_TRUE(MeasureInTurn(contenders, options, &cells).ok());
    EXPECT_EQ(most, alone ? 1 : 4);
    EXPECT_EQ(loaded, 0);
    for (const v1::BenchCell& cell : cells) EXPECT_EQ(cell.steps(), 3);
    ASSERT_EQ(warnings.size(), alone ? 1u : 0u);
    if (alone) {
      EXPECT_THAT(warnings[0], HasSubstr("batch 8: the job shares its device"));
    }
  }
}

int64_t ReservedBytes(const std::vector<std::string>& parts) {
  const v1::PlanResponse plan = PlanJob(Spec(parts), {});
  EXPECT_EQ(plan.errors_size(), 0);
  return plan.plan().parameter_bytes() + plan.plan().activation_bytes();
}

// What they load one after the other must fit in what the scheduler keeps for them.
TEST(Turns, TheReservationOfWhoSharesHoldsEachMode) {
  const std::string share = "resources { share: true }", modes = "modes: BF16 modes: FP16 modes: TF32";
  const std::string chosen = "precision { mode: AUTO auto { " + modes + " } }";
  int64_t largest = 0;
  for (const char* mode : {"FP32", "TF32", "FP16", "BF16"}) {
    largest = std::max(largest, ReservedBytes({kConvNet, kGlyphs, absl::StrCat("precision { mode: ", mode, " }")}));
  }
  EXPECT_EQ(ReservedBytes({kConvNet, kGlyphs, chosen, share}), largest);
  const std::string bench = "train { batch_size: 8 } bench { batch_sizes: 8 batch_sizes: 64 " + modes + " }";
  // FP16's with what looks at its gradients.
  const std::string looking = "train { batch_size: 64 } precision { mode: FP16 } report { diagnostics_every_steps: 1 }";
  EXPECT_GE(ReservedBytes({kConvNet, kGlyphs, bench, share}), ReservedBytes({kConvNet, kGlyphs, looking}));
}

TEST(Benchmark, WhoSharesADeviceIsToldOfIt) {
  const ScratchFolder folder;
  Recorder recorder;
  ASSERT_TRUE(
      Train(Spec({kConvNet, kGlyphs, kBench, "resources { share: true }"}), Options(folder.path()), &recorder).ok());
  EXPECT_EQ(CellsIn(recorder).size(), 6u);
  for (const v1::BenchCell& cell : CellsIn(recorder)) EXPECT_FALSE(cell.has_failure()) << cell.DebugString();
  int told = 0;
  for (const v1::LogLine& line : recorder.logs()) told += line.text().find("shares its device") != std::string::npos;
  EXPECT_EQ(told, 2) << "at each batch size";
}

TEST(Benchmark, WhatIsNotPossibleIsMarked) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = Train(
      Spec({kConvNet, kGlyphs, "bench { modes: BF16 batch_sizes: 1048576 batch_sizes: 512 batch_sizes: 8 steps: 2 }"}),
      Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::BenchCell> cells = CellsIn(recorder);
  ASSERT_EQ(cells.size(), 6u);
  // Before it is planned, which would want more memory than there is.
  for (const int i : {0, 1, 2, 3}) {
    EXPECT_EQ(cells[i].failure().class_(), v1::Failure::INVALID_SPEC) << cells[i].failure().message();
    EXPECT_THAT(cells[i].failure().message(), HasSubstr("holds 320 samples, fewer than the batch size"));
  }
  EXPECT_FALSE(cells[2].has_speed_up());
  EXPECT_EQ(cells[2].steps(), 0);
  EXPECT_FALSE(cells[4].has_failure());
  EXPECT_FALSE(cells[5].has_failure());
}

TEST(Benchmark, AnotherAttemptGoesOnWhereEventsEnd) {
  const ScratchFolder folder;
  const auto spec = Spec({kConvNet, kGlyphs, kBench});
  TrainerOptions options = Options(folder.path());
  for (const int64_t reported : {0, 3, 4, 6}) {
    SCOPED_TRACE(reported);
    Recorder recorder;
    options.last_reported_step = reported;
    ASSERT_TRUE(Train(spec, options, &recorder).ok());
    const std::vector<v1::BenchCell> cells = CellsIn(recorder);
    const int64_t kept = reported / 3 * 3;
    ASSERT_EQ(cells.size(), static_cast<size_t>(6 - kept));
    if (!cells.empty()) {
      EXPECT_EQ(cells[0].index(), kept + 1);
    }
    ASSERT_EQ(recorder.rewound().size(), reported == 4 ? 1u : 0u);
    if (reported == 4) {
      EXPECT_EQ(recorder.rewound()[0].to_step(), 3);
    }
  }
}

TEST(Benchmark, Stops) {
  const ScratchFolder folder;
  Recorder recorder;
  auto trainer = Trainer::Create(Spec({kConvNet, kGlyphs, kBench}), Options(folder.path()), &recorder);
  ASSERT_TRUE(trainer.ok());
  recorder.on_event = [&](const v1::JobEvent& event) {
    if (event.has_bench_cell() && event.bench_cell().index() == 3) (*trainer)->Request(Command::kCheckpointAndStop);
    return absl::OkStatus();
  };
  const auto outcome = (*trainer)->Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_EQ(CellsIn(recorder).size(), 3u);
  EXPECT_EQ((*trainer)->step(), 3 * 6);
}

TEST(Benchmark, SweepsProducts) {
  Recorder recorder;
  TrainerOptions options;
  options.clock = CountingClock();
  const auto outcome = Train(Spec({"bench { steps: 2 warmup_steps: 1 sweep { kind: GEMM sizes: 16 sizes: 131072 } }"}),
                             options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::BenchCell> cells = CellsIn(recorder);
  ASSERT_EQ(cells.size(), 10u);
  EXPECT_EQ(cells[0].size(), "16");
  // By the clock a plan step takes a second: the one product, and of FP8 what quantizes it.
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(cells[i].step_seconds(), 1) << cells[i].DebugString();
    EXPECT_EQ(cells[i].flops_per_second(), 2.0 * 16 * 16 * 16);
    EXPECT_EQ(cells[i].speed_up(), 1);
  }
  EXPECT_GT(cells[4].step_seconds(), 1);
  for (size_t i = 5; i < 10; ++i) EXPECT_EQ(cells[i].failure().class_(), v1::Failure::OUT_OF_MEMORY);
}

TEST(Benchmark, SweepsConvolutions) {
  Recorder recorder;
  const auto outcome = Train(Spec({"bench { modes: BF16 modes: TF32 steps: 1 warmup_steps: 0 "
                                   "  sweep { kind: CONV sizes: 2 sizes: 3 kernels: 1 kernels: 4 image: 5 } }"}),
                             TrainerOptions(), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::BenchCell> cells = CellsIn(recorder);
  ASSERT_EQ(cells.size(), 12u);
  EXPECT_EQ(cells[3].size(), "2 channels, 4x4");
  for (const v1::BenchCell& cell : cells) EXPECT_FALSE(cell.has_failure()) << cell.DebugString();
}

// That the operation counts by hand are those of the op.
TEST(Sweep, CountsAsItsGraphDoes) {
  for (const SweepSize size :
       {SweepSize{v1::Sweep::GEMM, 12}, SweepSize{v1::Sweep::CONV, 6, 3, 10}, SweepSize{v1::Sweep::CONV, 6, 4, 9}}) {
    const auto graph = GraphOf(size);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const Shape y = graph->type(graph->outputs.at("y")).shape;
    const Shape& w = graph->parameters[0].type.shape;
    EXPECT_EQ(y.back(), size.size);
    if (size.kind == v1::Sweep::CONV) {
      EXPECT_EQ(y[1], size.image);
    }
    EXPECT_EQ(size.flops(), 2.0 * static_cast<double>(NumElements(y)) * static_cast<double>(NumElements(w)) /
                                static_cast<double>(size.size));
  }
}

}  // namespace
}  // namespace ampd::train
