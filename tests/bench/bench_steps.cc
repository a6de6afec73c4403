// Times whole training steps of a job on synthetic batches, without daemon, loader or reports:
//   bench_steps [--device=DEVICE] [--steps=fastest|resident|interpreted|captured|enqueued|host]
//   [--fusion=none|chains|all]
//   [--autotune=FOLDER] [--set=PATH=VALUE]... JOB.yaml INPUT TARGET MODE THREADS
// DEVICE: "cpu-0" (default), "cuda" (the first one) or a GPU's UUID. --steps, of a device that takes steps by itself:
// whether it keeps a small network on one multiprocessor (of others it replays captured ones), also without taking
// dense layers together (interpreted), replays captured ones, does what it measures to be faster of both (default, as
// jobs do), has each kernel launched anew, or leaves them to the host. --fusion: which steps of the plan may be one
// kernel: none, elementwise chains, or products too (default).
// --autotune: an existing folder; processes that share it compute by the same algorithms of the libraries, once the
// first has measured them. INPUT and TARGET are as bench_job.h says. MODE: a precision mode. Answers each line "N" of
// its input, after N attempted steps, with one line of JSON:
//   {"median": seconds a step, "lowest": ..., "highest": ..., "host": seconds a step that the host is busy with it,
//    "steps": N, "applied": M, "replayed": R, "loss": of the last, "launch": "resident", "interpreted", "captured",
//    "enqueued" or "host", "regions": products of a step that are joined with what follows}
// A device that takes steps by itself has the batches of a window of steps in its memory before the clock starts;
// with "fed N" batches are copied to it meanwhile, one a step.
// With "soak N": after N such steps in ten parts one line of JSON with what was in use at first, after the first part
// and at the end, of the device's memory and of the process's: {"device_bytes": [...], "resident_bytes": [...], "loss":
// ...} With "nodes" in place of N: runs a few steps and prints the time of each plan step (on the CPU its processor
// time, with one thread: what it takes where nobody else wants the processor; on a device from launch to end), its
// FLOP/s and bytes/s, slowest first, then the same by op. With "floor", on the CPU: one line of JSON with what the step
// computes and moves, what the machine is measured to do, and the seconds that a step must take at least by that
// (tests/bench/floor.h), and with the memory that is planned and was used at most.
// With "memory": what the plan says, and what the process holds, in bytes: {"parameters": masters, gradients, moments,
// published copies and state, "activations": the arena, "inputs": the batch, "gflop": of a step, "idle": resident when
// main began, "peak": resident at most since, "device": in use beyond what was before the model was made}
// With "arena": what lies in the arena when it is fullest, largest first.
// With "notes": what a training's log says of how the device computes the network, a line each.
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
#include "absl/strings/strip.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/train/captured_steps.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/device_steps.h"
#include "tests/bench/floor.h"
#include "tests/bench/wait_for_device.h"

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

constexpr int64_t kPlannedSteps = 1 << 30;
constexpr int kSoakParts = 10;
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
  // `model` is of `plan`, `free_before` what was free of its memory before both were made.
  Bench(ResolvedJobSpec spec, std::unique_ptr<PlannedModel> plan, std::unique_ptr<LoadedModel> model,
        int64_t free_before)
      : spec_(std::move(spec)), plan_(std::move(plan)), model_(std::move(model)), free_before_(free_before) {
    for (size_t p = 0; p < plan_->phases.size(); ++p) {
      runners_.push_back(std::make_unique<StepRunner>(kPlannedSteps, plan_.get(), model_.get(), static_cast<int>(p)));
    }
  }

  absl::Status Prepare(const bench::Sample& sample, StepMode steps) {
    batch_ = bench::DrawBatch(sample, spec_.proto().train().batch_size());
    AMPD_RETURN_IF_ERROR(model_->memory.Initialize(spec_.proto().seed()));
    for (const auto& runner : runners_) {
      scalers_.push_back(optim::InitialScalerState(runner->loss_scale()));
      AMPD_RETURN_IF_ERROR(runner->Prepare());
    }
    if (on_host() || steps == StepMode::kHost) return absl::OkStatus();
    AMPD_ASSIGN_OR_RETURN(device_, bench::DeviceSteps::Create(*plan_, model_.get(), &runners_, &batch_, LaunchOf(steps),
                                                              bench::WaitForDevice));
    return absl::OkStatus();
  }

  absl::Status Run(int64_t steps, bool fed) {
    bench::DeviceTimes times;
    if (device_ != nullptr) {
      AMPD_ASSIGN_OR_RETURN(times, fed ? device_->Fed(steps) : device_->Resident(steps));
    } else {
      AMPD_ASSIGN_OR_RETURN(times, RunByHost(steps));
    }
    std::vector<double>& seconds = times.windows;
    std::sort(seconds.begin(), seconds.end());
    std::printf(
        "{\"median\": %.9f, \"lowest\": %.9f, \"highest\": %.9f, \"host\": %.9f, \"steps\": %ld, \"applied\": %ld, "
        "\"replayed\": %ld, \"loss\": %.6g, \"launch\": \"%s\", \"regions\": %ld}\n",
        seconds[seconds.size() / 2], seconds.front(), seconds.back(), times.host, static_cast<long>(times.steps),
        static_cast<long>(times.applied), static_cast<long>(times.replayed), times.loss, Launch(), Regions());
    return absl::OkStatus();
  }

  absl::Status Soak(int64_t steps) {
    if (device_ == nullptr) return absl::InvalidArgumentError("soak: the host takes the steps here");
    std::string device, resident;
    double loss = 0;
    for (int part = 0; part <= kSoakParts; ++part) {
      if (part <= 1 || part == kSoakParts) {
        absl::StrAppend(&device, part > 0 ? ", " : "", DeviceBytes());
        absl::StrAppend(&resident, part > 0 ? ", " : "", StatusBytes("VmRSS:"));
      }
      if (part == kSoakParts) break;
      AMPD_ASSIGN_OR_RETURN(const bench::DeviceTimes times, device_->Fed((steps + kSoakParts - 1) / kSoakParts));
      loss = times.loss;
    }
    std::printf("{\"device_bytes\": [%s], \"resident_bytes\": [%s], \"loss\": %.6g}\n", device.c_str(),
                resident.c_str(), loss);
    return absl::OkStatus();
  }

  absl::Status PrintFloor(int threads) const {
    if (!on_host()) return absl::InvalidArgumentError("floor: the rates measured are the CPU's");
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

  absl::Status PrintNotes() const {
    if (device_ == nullptr) return absl::InvalidArgumentError("notes: the host takes the steps here");
    for (const std::string& note : device_->notes()) std::printf("%s\n", note.c_str());
    return absl::OkStatus();
  }

  void PrintMemory(int64_t idle) const {
    int64_t inputs = 0;
    for (const Tensor* t : {&batch_.inputs, &batch_.labels, &batch_.targets}) inputs += t->view().bytes();
    double flops = 0;
    for (const PlannedPhase& phase : plan_->phases) {
      for (const runtime::PlanStep& step : phase.plans[0].steps) flops += step.cost.flops;
    }
    std::printf(
        "{\"parameters\": %ld, \"activations\": %ld, \"training_activations\": %ld, \"tensors\": %ld, \"inputs\": %ld, "
        "\"gflop\": %.6f, \"idle\": %ld, \"peak\": %ld, \"device\": %ld}\n",
        static_cast<long>(plan_->parameter_bytes()), static_cast<long>(plan_->activation_bytes()),
        static_cast<long>(plan_->phases[0].plans[0].arena_bytes),
        static_cast<long>(plan_->phases[0].plans[0].activation_bytes), static_cast<long>(inputs), flops / 1e9,
        static_cast<long>(idle), static_cast<long>(StatusBytes("VmHWM:")),
        static_cast<long>(on_host() ? 0 : free_before_ - model_->memory.memory()->free_bytes()));
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
      if (!on_host()) AMPD_RETURN_IF_ERROR(bench::WaitForDevice());
      const double now = Now();
      for (NodeTime* time :
           {&nodes[absl::StrCat(ir::OpName(step.op), " ", step.name)], &kinds[std::string(ir::OpName(step.op))]}) {
        time->seconds += (now - last) / kNodePasses;
        time->cost.flops += step.cost.flops / kNodePasses;
        time->cost.bytes += step.cost.bytes / kNodePasses;
      }
      last = Now();
      return absl::OkStatus();
    };
    const MicroBatches passes(plan_.get(), model_.get(), spec_.proto().train().batch_size(),
                              spec_.proto().train().micro_batch_size());
    AMPD_RETURN_IF_ERROR(passes.Run(batch_, {}, 1).status());
    for (int i = 0; i < kNodePasses; ++i) {
      last = Now();
      AMPD_RETURN_IF_ERROR(passes.Run(batch_, {}, 1, hook).status());
    }
    PrintTimes(nodes);
    PrintTimes(kinds);
    return absl::OkStatus();
  }

 private:
  const char* Launch() const {
    if (device_ == nullptr) return "host";
    if (device_->launch() == runtime::StepLaunch::kResident) return "resident";
    if (device_->launch() == runtime::StepLaunch::kInterpreted) return "interpreted";
    return device_->launch() == runtime::StepLaunch::kCaptured ? "captured" : "enqueued";
  }
  long Regions() const {
    long regions = 0;
    for (const PlannedPhase& phase : plan_->phases) {
      for (const runtime::PlanStep& step : phase.plans.back().steps) regions += step.op == ir::OpKind::kRegion ? 1 : 0;
    }
    return regions;
  }
  bool on_host() const { return plan_->backend->memory()->on_host(); }
  double Now() const {
    return on_host() ? ProcessorSeconds() : std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  }
  int64_t DeviceBytes() const {
    const runtime::Memory* memory = plan_->backend->memory();
    return memory->total_bytes() - memory->free_bytes();
  }

  // Every phase that is due, decided by the host.
  absl::StatusOr<bench::DeviceTimes> RunByHost(int64_t steps) {
    bench::DeviceTimes times;
    for (int64_t i = 0; i < steps; ++i) {
      const auto start = Clock::now();
      for (size_t p = 0; p < runners_.size(); ++p) {
        if ((batch_.step + 1) % plan_->phases[p].every != 0) continue;
        AMPD_ASSIGN_OR_RETURN(const StepResult result, runners_[p]->Run(batch_, &scalers_[p]));
        times.loss = result.loss;
        times.applied += result.applied() ? 1 : 0;
      }
      times.windows.push_back(Seconds(Clock::now() - start));
      times.host += times.windows.back() / static_cast<double>(steps);
      ++times.steps;
      ++batch_.step;
    }
    return times;
  }

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
  const int64_t free_before_;
  // By phase.
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<optim::LossScalerState> scalers_;
  data::Batch batch_;
  // Null where the host takes the steps.
  std::unique_ptr<bench::DeviceSteps> device_;
};

struct Arguments {
  std::string device = "cpu-0";
  StepMode steps = StepMode::kFastest;
  Fusion fusion = Fusion::kAll;
  std::string autotune_dir;
  std::vector<std::string> settings;
  std::vector<std::string> rest;
  int threads = 0;
};

absl::StatusOr<Arguments> Parse(const std::vector<std::string>& args) {
  Arguments parsed;
  for (absl::string_view arg : args) {
    if (absl::ConsumePrefix(&arg, "--device=")) {
      parsed.device = std::string(arg);
    } else if (absl::ConsumePrefix(&arg, "--autotune=")) {
      parsed.autotune_dir = std::string(arg);
    } else if (absl::ConsumePrefix(&arg, "--set=")) {
      parsed.settings.emplace_back(arg);
    } else if (arg == "--steps=resident") {
      parsed.steps = StepMode::kResident;
    } else if (arg == "--steps=interpreted") {
      parsed.steps = StepMode::kInterpreted;
    } else if (arg == "--steps=captured") {
      parsed.steps = StepMode::kCaptured;
    } else if (arg == "--steps=enqueued") {
      parsed.steps = StepMode::kEnqueued;
    } else if (arg == "--steps=host") {
      parsed.steps = StepMode::kHost;
    } else if (arg == "--fusion=none") {
      parsed.fusion = Fusion::kNone;
    } else if (arg == "--fusion=chains") {
      parsed.fusion = Fusion::kChains;
    } else if (arg != "--steps=fastest" && arg != "--fusion=all") {
      parsed.rest.emplace_back(arg);
    }
  }
  if (parsed.rest.size() != 5 || !absl::SimpleAtoi(parsed.rest[4], &parsed.threads)) {
    return absl::InvalidArgumentError(
        "usage: bench_steps [--device=cpu-0|cuda|UUID] [--steps=fastest|resident|interpreted|captured|enqueued|host] "
        "[--fusion=none|chains|all] [--autotune=FOLDER] [--set=PATH=VALUE]... JOB.yaml INPUT TARGET MODE THREADS");
  }
  return parsed;
}

absl::StatusOr<std::unique_ptr<runtime::Backend>> OpenBackend(const Arguments& arguments) {
  if (arguments.device == "cuda") return MakeCudaBackend("", arguments.autotune_dir);
  return MakeBackend(arguments.device, arguments.threads);
}

absl::Status Answer(const std::string& line, int threads, int64_t idle, Bench* bench) {
  absl::string_view count = line;
  const bool fed = absl::ConsumePrefix(&count, "fed "), soak = absl::ConsumePrefix(&count, "soak ");
  int64_t steps = 0;
  if (line == "nodes") return bench->RunNodes();
  if (line == "floor") return bench->PrintFloor(threads);
  if (line == "notes") return bench->PrintNotes();
  if (line == "memory") {
    bench->PrintMemory(idle);
  } else if (line == "arena") {
    bench->PrintArena();
  } else if (absl::SimpleAtoi(count, &steps) && steps > 0) {
    return soak ? bench->Soak(steps) : bench->Run(steps, fed);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("not a number of steps: ", line));
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& args) {
  const int64_t idle = StatusBytes("VmHWM:");
  AMPD_ASSIGN_OR_RETURN(const Arguments arguments, Parse(args));
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec spec,
                        bench::ReadSpec(arguments.rest[0], arguments.rest[3], arguments.settings));
  AMPD_ASSIGN_OR_RETURN(const bench::Sample sample, bench::ParseSample(arguments.rest[1], arguments.rest[2]));
  AMPD_ASSIGN_OR_RETURN(auto backend, OpenBackend(arguments));
  const int64_t free_before = backend->memory()->free_bytes();
  AMPD_ASSIGN_OR_RETURN(auto plan,
                        PlanModel(spec, sample.info, std::move(backend), arguments.threads, arguments.fusion));
  AMPD_ASSIGN_OR_RETURN(auto model, LoadedModel::Create(*plan));
  Bench bench(std::move(spec), std::move(plan), std::move(model), free_before);
  AMPD_RETURN_IF_ERROR(bench.Prepare(sample, arguments.steps));
  std::string line;
  while (std::getline(std::cin, line)) {
    AMPD_RETURN_IF_ERROR(Answer(line, arguments.threads, idle, &bench));
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
