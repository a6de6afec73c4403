// Times whole training steps of a job on synthetic batches, without daemon, loader or reports:
//   bench_steps JOB.yaml INPUT TARGET MODE THREADS
// INPUT: extents of a sample, "64,64,3"; "ids=1000:128" are 128 whole numbers below 1000. TARGET: "classes=10",
// "classes=1000:128" (a label for each of 128 positions) or "features=1". MODE: a precision mode.
// Answers each line "N" of its input, after N attempted steps, with one line of JSON:
//   {"median": seconds a step, "lowest": ..., "steps": N, "applied": M, "loss": of the last}
// With "nodes" in place of N: runs a few steps and prints the processor time of each plan step (with one thread: what
// it takes where nobody else wants the processor), its FLOP/s and bytes/s, slowest first, then the same by op. With
// "floor": one line of JSON with what the step computes and moves, what the machine is measured to do, and the seconds
// that a step must take at least by that (tests/bench/floor.h), and with the memory that is planned and was used at
// most.
// With "memory": what the plan says, and what the process holds, in bytes: {"parameters": masters, gradients, moments,
// published copies and state, "activations": the arena, "inputs": the batch, "idle": resident when main began, "peak":
// resident at most since}
// With "arena": what lies in the arena when it is fullest, largest first.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/bench/floor.h"

namespace ampd::train {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// A line of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kilobytes = 0;
    if (word == key && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

constexpr int64_t kMaxSpecBytes = 1 << 20;
constexpr int64_t kPlannedSteps = 1 << 30;

absl::StatusOr<ResolvedJobSpec> ReadSpec(const std::string& path, const std::string& mode) {
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxSpecBytes));
  v1::JobSpec spec;
  AMPD_RETURN_IF_ERROR(ParseYaml(text, path, &spec));
  AMPD_RETURN_IF_ERROR(ApplySet(&spec, absl::StrCat("precision.mode=", mode)));
  return ResolveJobSpec(std::move(spec));
}

// What the command line says of the batch.
struct Sample {
  models::SampleInfo info;
  int64_t ids = 0;  // > 0: inputs are whole numbers below it
};

absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view text, char separator) {
  std::vector<int64_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, separator)) {
    int64_t n = 0;
    if (!absl::SimpleAtoi(part, &n) || n < 1) return absl::InvalidArgumentError(absl::StrCat("no number: ", text));
    numbers.push_back(n);
  }
  return numbers;
}

absl::StatusOr<Sample> ParseSample(absl::string_view input, absl::string_view target) {
  Sample sample;
  if (absl::ConsumePrefix(&input, "ids=")) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ParseNumbers(input, ':'));
    sample.ids = ids[0];
    sample.info.input_shape = {ids.back()};
  } else {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> extents, ParseNumbers(input, ','));
    sample.info.input_shape = Shape(extents.begin(), extents.end());
  }
  const bool classes = absl::ConsumePrefix(&target, "classes=");
  if (!classes && !absl::ConsumePrefix(&target, "features=")) {
    return absl::InvalidArgumentError(absl::StrCat("TARGET: ", target));
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ParseNumbers(target, ':'));
  (classes ? sample.info.classes : sample.info.target_features) = numbers[0];
  if (numbers.size() > 1) sample.info.label_shape = {numbers[1]};
  return sample;
}

constexpr int kNodePasses = 3;

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct NodeTime {
  double seconds = 0;
  ops::Cost cost;
};

void PrintTimes(const std::map<std::string, NodeTime>& times) {
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, time] : times) order.emplace_back(time.seconds, name);
  std::sort(order.rbegin(), order.rend());
  for (const auto& [seconds, name] : order) {
    const ops::Cost& cost = times.at(name).cost;
    std::printf("%10.1f us %8.1f GFLOP/s %7.1f GB/s  %s\n", seconds * 1e6, cost.flops / seconds / 1e9,
                cost.bytes / seconds / 1e9, name.c_str());
  }
}

class Bench {
 public:
  // `model` is of `plan`.
  Bench(ResolvedJobSpec spec, std::unique_ptr<PlannedModel> plan, std::unique_ptr<LoadedModel> model)
      : spec_(std::move(spec)),
        plan_(std::move(plan)),
        model_(std::move(model)),
        runner_(kPlannedSteps, plan_.get(), model_.get()) {}

  absl::Status Prepare(const Sample& described) {
    const models::SampleInfo& sample = described.info;
    const int64_t batch = spec_.proto().train().batch_size();
    RngSequence rng(1, "bench");
    Shape shape = sample.input_shape;
    shape.insert(shape.begin(), batch);
    batch_.inputs = Tensor(DType::kF32, shape);
    for (float& v : batch_.inputs.as<float>()) {
      v = described.ids > 0 ? static_cast<float>(rng.NextBelow(described.ids)) : 2 * rng.NextUniform() - 1;
    }
    if (sample.classes > 0) {
      Shape labels = sample.label_shape;
      labels.insert(labels.begin(), batch);
      batch_.labels = Tensor(DType::kI32, labels);
      for (int32_t& v : batch_.labels.as<int32_t>()) v = static_cast<int32_t>(rng.NextBelow(sample.classes));
    } else {
      batch_.targets = Tensor(DType::kF32, {batch, sample.target_features});
      for (float& v : batch_.targets.as<float>()) v = rng.NextUniform();
    }
    batch_.valid = batch;
    AMPD_RETURN_IF_ERROR(model_->memory.Initialize(spec_.proto().seed()));
    scaler_ = optim::InitialScalerState(runner_.loss_scale());
    return runner_.Prepare();
  }

  absl::Status Run(int64_t steps) {
    std::vector<double> times;
    const int64_t applied = scaler_.steps_applied;
    double loss = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const auto start = Clock::now();
      AMPD_ASSIGN_OR_RETURN(const StepResult result, runner_.Run(batch_, &scaler_));
      times.push_back(Seconds(Clock::now() - start));
      loss = result.loss;
      ++batch_.step;
    }
    std::sort(times.begin(), times.end());
    std::printf("{\"median\": %.9f, \"lowest\": %.9f, \"steps\": %ld, \"applied\": %ld, \"loss\": %.6g}\n",
                times[times.size() / 2], times[0], static_cast<long>(steps),
                static_cast<long>(scaler_.steps_applied - applied), loss);
    return absl::OkStatus();
  }

  absl::Status PrintFloor(int threads) const {
    const runtime::Plan& train = plan_->phases[0].plans[0];
    const int64_t arena = train.arena_bytes;
    AMPD_ASSIGN_OR_RETURN(const bench::MachineRates rates,
                          bench::MeasureRates(threads, arena + plan_->parameter_bytes()));
    const bench::Floor floor = bench::FloorOf(train, UpdateBytes(), rates);
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    std::printf(
        "{\"floor\": %.9f, \"gflop\": %.6f, \"gbytes\": %.6f, \"f32_gflops\": %.1f, \"bf16_gflops\": %.1f, "
        "\"gbytes_per_second\": %.1f, \"activation_bytes\": %ld, \"parameter_bytes\": %ld, \"peak_bytes\": %ld}\n",
        floor.seconds, floor.flops / 1e9, floor.bytes / 1e9, rates.f32_flops / 1e9, rates.bf16_flops / 1e9,
        rates.bytes / 1e9, static_cast<long>(arena), static_cast<long>(plan_->parameter_bytes()),
        usage.ru_maxrss * 1024);
    return absl::OkStatus();
  }

  void PrintMemory(int64_t idle) const {
    const int64_t inputs = batch_.inputs.view().bytes() + batch_.labels.view().bytes() + batch_.targets.view().bytes();
    std::printf(
        "{\"parameters\": %ld, \"activations\": %ld, \"training_activations\": %ld, \"tensors\": %ld, \"inputs\": %ld, "
        "\"idle\": %ld, \"peak\": %ld}\n",
        static_cast<long>(plan_->parameter_bytes()), static_cast<long>(plan_->activation_bytes()),
        static_cast<long>(plan_->phases[0].plans[0].arena_bytes),
        static_cast<long>(plan_->phases[0].plans[0].activation_bytes), static_cast<long>(inputs),
        static_cast<long>(idle), static_cast<long>(StatusBytes("VmHWM:")));
  }

  // Of the step during which most of the arena is in use.
  void PrintArena() const {
    struct Use {
      int first, last;
      int64_t bytes;
      std::string what;
    };
    std::map<std::pair<int64_t, std::string>, Use> uses;
    const int steps = static_cast<int>(plan_->phases[0].plans[0].steps.size());
    for (int s = 0; s < steps; ++s) {
      const runtime::PlanStep& step = plan_->phases[0].plans[0].steps[s];
      for (const auto* tensors : {&step.inputs, &step.outputs}) {
        for (const runtime::PlannedTensor& t : *tensors) {
          if (t.space != runtime::Space::kArena) continue;
          const int64_t bytes = NumElements(t.type.shape) * SizeOf(t.type.dtype);
          const std::string what = absl::StrCat(t.name, " ", DTypeName(t.type.dtype), ShapeString(t.type.shape));
          uses.insert({{t.offset, t.name}, {s, s, bytes, what}}).first->second.last = s;
        }
      }
      const int64_t workspace = step.kernel->workspace_bytes();
      const std::string name = absl::StrCat("workspace of ", ir::OpName(step.op), " ", step.name);
      uses.insert({{step.workspace_offset, name}, {s, s, workspace, name}});
    }
    std::vector<int64_t> load(steps);
    for (const auto& [key, use] : uses) {
      for (int s = use.first; s <= use.last; ++s) load[s] += use.bytes;
    }
    const int fullest = static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin());
    std::printf("%12ld arena\n%12ld in use during %s\n", static_cast<long>(plan_->phases[0].plans[0].arena_bytes),
                static_cast<long>(load[fullest]), plan_->phases[0].plans[0].steps[fullest].name.c_str());
    std::vector<std::pair<int64_t, std::string>> order;
    for (const auto& [key, use] : uses) {
      if (use.first <= fullest && fullest <= use.last) order.emplace_back(use.bytes, use.what);
    }
    std::sort(order.rbegin(), order.rend());
    for (const auto& [bytes, what] : order) std::printf("%12ld %s\n", static_cast<long>(bytes), what.c_str());
  }

  // Passes over the network with a clock between the plan's steps; the first one warms up.
  absl::Status RunNodes() {
    std::map<std::string, NodeTime> nodes, kinds;
    double last = 0;
    const auto hook = [&](const runtime::PlanStep& step, absl::Span<const TensorView>) {
      const double now = ProcessorSeconds();
      for (NodeTime* time :
           {&nodes[absl::StrCat(ir::OpName(step.op), " ", step.name)], &kinds[std::string(ir::OpName(step.op))]}) {
        time->seconds += (now - last) / kNodePasses;
        time->cost.flops += step.cost.flops / kNodePasses;
        time->cost.bytes += step.cost.bytes / kNodePasses;
      }
      last = ProcessorSeconds();
      return absl::OkStatus();
    };
    const MicroBatches passes(plan_.get(), model_.get(), spec_.proto().train().batch_size(),
                              spec_.proto().train().micro_batch_size());
    AMPD_RETURN_IF_ERROR(passes.Run(batch_, {}, 1).status());
    for (int i = 0; i < kNodePasses; ++i) {
      last = ProcessorSeconds();
      AMPD_RETURN_IF_ERROR(passes.Run(batch_, {}, 1, hook).status());
    }
    PrintTimes(nodes);
    PrintTimes(kinds);
    return absl::OkStatus();
  }

 private:
  // The check reads the gradients; the update reads them again, reads and writes masters and moments; publishing reads
  // the masters and writes the copies.
  double UpdateBytes() const {
    const double arena = static_cast<double>(plan_->layout.arena_elements()) * SizeOf(DType::kF32);
    const double copies = static_cast<double>(plan_->layout.published_bytes());
    return arena * (2 + 2 * (1 + plan_->phases[0].optimizer.moments())) + (copies > 0 ? arena + copies : 0);
  }

  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
  StepRunner runner_;
  optim::LossScalerState scaler_;
  data::Batch batch_;
};

absl::Status Main(const std::vector<std::string>& args) {
  const int64_t idle = StatusBytes("VmHWM:");
  int threads = 0;
  if (args.size() != 5 || !absl::SimpleAtoi(args[4], &threads)) {
    return absl::InvalidArgumentError("usage: bench_steps JOB.yaml INPUT TARGET MODE THREADS");
  }
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec spec, ReadSpec(args[0], args[3]));
  AMPD_ASSIGN_OR_RETURN(const Sample sample, ParseSample(args[1], args[2]));
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeBackend("cpu-0", threads));
  AMPD_ASSIGN_OR_RETURN(auto plan, PlanModel(spec, sample.info, std::move(backend), threads));
  AMPD_ASSIGN_OR_RETURN(auto model, LoadedModel::Create(*plan));
  Bench bench(std::move(spec), std::move(plan), std::move(model));
  AMPD_RETURN_IF_ERROR(bench.Prepare(sample));
  std::string line;
  while (std::getline(std::cin, line)) {
    int64_t steps = 0;
    if (line == "nodes") {
      AMPD_RETURN_IF_ERROR(bench.RunNodes());
    } else if (line == "floor") {
      AMPD_RETURN_IF_ERROR(bench.PrintFloor(threads));
    } else if (line == "memory") {
      bench.PrintMemory(idle);
    } else if (line == "arena") {
      bench.PrintArena();
    } else if (absl::SimpleAtoi(line, &steps) && steps > 0) {
      AMPD_RETURN_IF_ERROR(bench.Run(steps));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("not a number of steps: ", line));
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ampd::train

int main(int argc, char** argv) {
  const absl::Status status = ampd::train::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
