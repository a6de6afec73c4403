#include "client/analysis/why.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/analysis/json_text.h"
#include "client/analysis/why_skips.h"
#include "client/exit_code.h"
#include "client/output/event_line.h"
#include "client/output/job_text.h"
#include "client/output/text.h"
#include "proto/spec/device_models.h"
#include "proto/spec/start_step.h"

namespace ampd::client {
namespace {

using v1::Failure;
using v1::Job;

constexpr double kInputBound = 0.2;
constexpr double kFarAboveFloor = 4;
// Of a step, between kernels.
constexpr double kLaunchBound = 0.5;
// Steps behind the attempt's first epoch that tell how fast it goes on, where that epoch has more: a cache of samples
// has been filled by then, and so have the system's of files.
constexpr int64_t kEnoughSteps = 100;

std::string NameOf(const Job& job) { return absl::StrCat(job.id(), " ", Clean(job.spec().name())); }

std::string Does(Job::QueueReason reason) {
  switch (reason) {
    case Job::RESOURCES:
      return "every device that could run it is held by another job";
    case Job::FOREIGN_PROCESS:
      return "a device that nobody holds is used by a process that is no worker of this server";
    case Job::DEVICE_UNHEALTHY:
      return "a device that nobody holds is out of order";
    case Job::DRAINING:
      return "the server is shutting down";
    default:
      return Job::QueueReason_Name(reason);
  }
}

Finding Queued(const WhyInput& input) {
  const Job& job = input.job;
  const std::string why = job.queue_message().empty() ? Does(job.queue_reason()) : Clean(job.queue_message());
  Finding finding{"queued", {absl::StrCat(Job::QueueReason_Name(job.queue_reason()), ": ", why)}, {}};
  if (job.has_estimated_start_time()) {
    finding.because.push_back(absl::StrCat("it starts by ", DateAndTime(job.estimated_start_time()), " ",
                                           ZoneOf(job.estimated_start_time()),
                                           ", if the jobs before it take the time they may"));
  }
  std::vector<std::string> ahead, holding;
  for (const Job& other : input.others) {
    if (other.id() == job.id()) continue;
    const bool before = other.state() == Job::QUEUED && other.queue_position() < job.queue_position();
    if (before) ahead.push_back(NameOf(other));
    if (!other.devices().empty()) {
      holding.push_back(absl::StrCat(NameOf(other), " holds ", absl::StrJoin(other.devices(), ", "), " at step ",
                                     other.summary().step(), "/", other.summary().total_steps()));
    }
  }
  finding.because.push_back(absl::StrCat("it is number ", job.queue_position(), " in line",
                                         ahead.empty() ? "" : ", behind ", absl::StrJoin(ahead, ", ")));
  finding.because.insert(finding.because.end(), holding.begin(), holding.end());
  for (const v1::Device& device : input.devices) {
    for (const v1::DeviceCondition& condition : device.conditions()) {
      finding.because.push_back(absl::StrCat(device.id(), ": ", v1::DeviceCondition::Kind_Name(condition.kind()), ": ",
                                             Clean(condition.message())));
    }
  }
  const std::string& wanted = job.spec().resources().device();
  if (!wanted.empty()) {
    finding.advice.push_back(absl::StrCat("it asks for ", Clean(wanted),
                                          " alone (resources.device); any other would do"
                                          " without that"));
  }
  return finding;
}

// Whether a wider dtype is to be had: FP32 and TF32 are of the widest range.
bool IsNarrow(v1::PrecisionSpec::Mode mode) {
  return mode != v1::PrecisionSpec::FP32 && mode != v1::PrecisionSpec::TF32;
}

// What of a device and a model is known of a step's floor.
const v1::ModeEstimate* OwnMode(const WhyInput& input) {
  if (!input.plan) return nullptr;
  for (const v1::ModeEstimate& mode : input.plan->modes()) {
    if (mode.mode() == ModeOf(input.job) && mode.step_seconds() > 0) return &mode;
  }
  return nullptr;
}

double MemoryBoundShare(const v1::PlanReport& plan) {
  double memory = 0, all = 0;
  for (const v1::LayerCost& layer : plan.layers()) {
    all += layer.seconds();
    if (layer.bound() == v1::LayerCost::MEMORY) memory += layer.seconds();
  }
  return all > 0 ? memory / all : 0;
}

// How long steps take that tell how fast the job goes.
struct Pace {
  StepCount steps;
  // " (mean of the attempt)", or of what of it. `ampctl get` has that of the newest report.
  const char* of = "";
  // Of the attempt's first epoch, where `steps` are those after it.
  absl::optional<StepCount> first_epoch;
};

double WaitShare(const StepCount& steps) {
  return steps.total_seconds > 0 ? steps.input_wait_seconds / steps.total_seconds : 0;
}

// An earlier attempt may have run on a device of another kind.
Pace PaceOf(const Events& events) {
  Events newest, first, later;
  for (const v1::JobEvent& event : events) {
    if (!event.has_step()) continue;
    if (!newest.empty() && event.attempt() != newest.back().attempt()) newest.clear();
    newest.push_back(event);
  }
  // What was decoded is kept by the attempt: one that began within an epoch decodes the rest in the next.
  const int64_t filling = newest.empty() ? 0 : newest[0].step().epoch() + (newest[0].step().first_step() > 1 ? 1 : 0);
  for (const v1::JobEvent& event : newest) {
    (event.step().epoch() > filling ? later : first).push_back(event);
  }
  const StepCount begun = StepsOf(first), steps = StepsOf(later);
  const bool enough = steps.reported >= std::min(kEnoughSteps, begun.reported) && steps.total_seconds > 0;
  if (!enough) return {StepsOf(newest), " (mean of the attempt)", absl::nullopt};
  return {steps, " (mean of the attempt after its first epoch)", begun};
}

// Whether samples are decoded one by one, on several threads, and what becomes of them then.
bool Decodes(const v1::DataSpec& data) { return data.train().has_image_folder() || data.train().has_wav_folder(); }
bool KeepsDecoded(const v1::DataSpec& data) { return Decodes(data) && data.cache().kind() != v1::CacheSpec::NONE; }

std::vector<std::string> AgainstWaiting(const v1::DataSpec& data, bool after_first_epoch) {
  if (!Decodes(data) && data.image().size() == 0) {
    return {
        "one thread makes this source's batches: store samples as they are trained on (data.image); a GPU can keep "
        "them (data.device_cache)"};
  }
  std::vector<std::string> advice = {absl::StrCat(
      "give it more threads for decoding (data.decode_threads, ",
      data.has_decode_threads() ? absl::StrCat(data.decode_threads(), " here") : "by default resources.cpu_threads",
      ")")};
  if (Decodes(data) && !KeepsDecoded(data)) advice.emplace_back("keep decoded samples (data.cache)");
  if (KeepsDecoded(data) && after_first_epoch) {
    const bool on_disk = data.cache().kind() == v1::CacheSpec::DISK;
    advice.push_back(absl::StrCat("what finds no room in data.cache is decoded in each epoch: raise its max_bytes",
                                  on_disk ? "" : ", or try kind: DISK"));
  }
  if (!data.train().has_wav_folder()) advice.emplace_back("store samples at the size that is trained on");
  return advice;
}

Finding InputBound(const v1::DataSpec& data, const Pace& pace) {
  const double share = WaitShare(pace.steps), step = pace.steps.step_seconds;
  Finding finding{"slow: input-bound", {}, AgainstWaiting(data, pace.first_epoch.has_value())};
  finding.because.push_back(absl::StrCat("the trainer waited for batches ", Percent(share), " of the time: ",
                                         StepTime(share * step), " of ", StepTime(step), " a step", pace.of));
  if (share < 0.99) {
    finding.because.push_back(absl::StrFormat("fed in time it could go %.2f times as fast", 1 / (1 - share)));
  }
  if (KeepsDecoded(data) && !pace.first_epoch) {
    finding.because.emplace_back(
        "that is the attempt's first epoch, or mostly: it decodes samples that later ones find kept (data.cache)");
  }
  return finding;
}

std::string UtilizationText(const Job& job) {
  return job.summary().has_model_flops_utilization()
             ? absl::StrCat("; it uses ", Percent(job.summary().model_flops_utilization()),
                            " of the device's peak in its mode")
             : "";
}

bool IsOnCpu(const WhyInput& input) { return input.plan->device_model().kind() == v1::Device::CPU; }

// Whether 16-bit operands are multiplied as such, and not only stored so.
bool Has16Bits(const WhyInput& input) {
  const v1::DeviceModel& model = input.plan->device_model();
  return !IsOnCpu(input) || model.fp16_flops() > 0 || model.bf16_flops() > 0;
}

// Of the attempt that took the newest step; null where it was not profiled.
const v1::StepProfile* ProfileOfNewestAttempt(const Events& events) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (!event->has_step_profile()) continue;
    const auto step = std::find_if(events.rbegin(), events.rend(), [](const auto& e) { return e.has_step(); });
    return step != events.rend() && step->attempt() == event->attempt() ? &event->step_profile() : nullptr;
  }
  return nullptr;
}

// What kernels take of a step; nullopt where the profile's times hold the gaps between them, or there are none.
absl::optional<double> KernelSeconds(const v1::StepProfile& profile) {
  if (profile.timing() != v1::StepProfile::KERNEL_ACTIVITY || profile.kernels().empty()) return absl::nullopt;
  double seconds = 0;
  for (const v1::ProfileKernel& kernel : profile.kernels()) seconds += kernel.seconds();
  return seconds / static_cast<double>(std::max<int64_t>(1, profile.last_step() - profile.first_step() + 1));
}

// A step that takes many times its floor. Of how long kernels take, only a profile tells.
Finding FarAboveFloor(const WhyInput& input, double busy) {
  const v1::StepProfile* profile = ProfileOfNewestAttempt(input.events);
  const absl::optional<double> kernels = profile == nullptr || IsOnCpu(input) ? absl::nullopt : KernelSeconds(*profile);
  if (!kernels) {
    return {"slow: far above its floor",
            {absl::StrCat("that is ", IsOnCpu(input) ? "" : "launches, ",
                          "kernels too small for the device, or kernels far from its peak")},
            {profile == nullptr ? "ampctl profile JOB, while it runs, tells which"
                                : "ampctl profile JOB --last shows what takes it"}};
  }
  const double between = std::max(0.0, 1 - *kernels / busy);
  const std::string profiled = absl::StrCat("in steps ", profile->first_step(), " to ", profile->last_step(),
                                            ", which were profiled, kernels take ", StepTime(*kernels),
                                            " each: ", Percent(between), " of a step lies between them");
  if (between <= kLaunchBound) {
    return {"slow: far above its floor",
            {profiled, "so they are too small for the device, or far from its peak"},
            {"ampctl profile JOB --last shows which take it"}};
  }
  Finding launches{"slow: launch-bound", {profiled}, {}};
  const auto raises = [](const v1::Advice& advice) { return advice.kind() == v1::Advice::RAISE_BATCH; };
  if (std::none_of(input.plan->advice().begin(), input.plan->advice().end(), raises)) {
    launches.advice.push_back("raise train.batch_size");
  }
  return launches;
}

Finding NearFloor(const WhyInput& input) {
  const double memory = MemoryBoundShare(*input.plan);
  if (memory <= 0.5) {
    return {"speed: compute-bound",
            {absl::StrCat(Percent(1 - memory), " of the floor is computing")},
            {"only a faster mode or device makes it faster"}};
  }
  const bool halves = !IsNarrow(ModeOf(input.job)) && Has16Bits(input);
  return {"speed: memory-bound",
          {absl::StrCat(Percent(memory), " of the floor is moving data, not computing")},
          {absl::StrCat(halves ? "a 16-bit mode halves what is moved; " : "",
                        "larger batches and wider layers compute more on what is moved")}};
}

Finding WithFloor(const WhyInput& input, const Pace& pace, double floor) {
  const StepCount& steps = pace.steps;
  const double busy = steps.step_seconds - steps.input_wait_seconds / std::max<double>(1, steps.reported);
  const double times = busy / floor;
  const std::string figures = absl::StrFormat(
      "a step takes %s%s%s, %.1f times the floor of %s that the device's peaks allow", StepTime(busy), pace.of,
      busy < steps.step_seconds ? " without its wait for batches" : "", times, StepTime(floor));
  Finding finding = times > kFarAboveFloor ? FarAboveFloor(input, busy) : NearFloor(input);
  finding.because.insert(finding.because.begin(), absl::StrCat(figures, UtilizationText(input.job)));
  for (const v1::Advice& advice : input.plan->advice()) {
    if (advice.kind() != v1::Advice::KIND_UNSPECIFIED) finding.advice.push_back(Clean(advice.text()));
  }
  return finding;
}

std::string NoFloor(const WhyInput& input) {
  if (!input.plan) return input.no_plan.empty() ? "there is no plan for its device" : Clean(input.no_plan);
  const v1::PrecisionSpec::Mode mode = ModeOf(input.job);
  const v1::DeviceModel& model = input.plan->device_model();
  const bool emulates = IsOnCpu(input) && model.fp32_flops() > 0 && !(PeakFlops(model, mode) > 0);
  return absl::StrCat("the plan for ", Clean(model.name()), " tells no time of a step in ",
                      v1::PrecisionSpec::Mode_Name(mode), emulates ? ", which it is taken to emulate" : "");
}

Finding WithoutFloor(const WhyInput& input, const Pace& pace) {
  Finding finding{"speed", {}, {}};
  finding.because.push_back(absl::StrCat("a step takes ", StepTime(pace.steps.step_seconds), pace.of, ", ",
                                         Percent(WaitShare(pace.steps)), " of it waiting for batches",
                                         UtilizationText(input.job)));
  finding.because.push_back(absl::StrCat("whether memory or computing bounds it is not known: ", NoFloor(input)));
  return finding;
}

std::vector<Finding> Speed(const WhyInput& input) {
  const Pace pace = PaceOf(input.events);
  if (pace.steps.reported == 0 || !(pace.steps.total_seconds > 0)) return {};
  if (WaitShare(pace.steps) > kInputBound) return {InputBound(input.job.spec().data(), pace)};
  const v1::ModeEstimate* mode = OwnMode(input);
  Finding finding = mode != nullptr ? WithFloor(input, pace, mode->step_seconds()) : WithoutFloor(input, pace);
  if (pace.first_epoch && WaitShare(*pace.first_epoch) > kInputBound) {
    finding.because.push_back(absl::StrCat("in the attempt's first epoch alone it waited for batches ",
                                           Percent(WaitShare(*pace.first_epoch)), " of the time"));
  }
  return {finding};
}

std::vector<std::string> ToTry(const Failure& failure, const WhyInput& input) {
  std::vector<std::string> advice;
  switch (failure.class_()) {
    case Failure::INVALID_SPEC:
      return {"correct the field that the message names and submit again"};
    case Failure::DATA:
      return {"look at the sample or file that the message names"};
    case Failure::OUT_OF_MEMORY:
      advice = {"ampctl plan FILE tells the largest batch that fits; train.micro_batch_size cuts a batch in pieces"};
      if (!IsNarrow(ModeOf(input.job))) advice.emplace_back("a 16-bit mode halves activations");
      return advice;
    case Failure::DIVERGED:
      return AgainstDivergence(input);
    case Failure::GPU_FAULT:
      return {"ampctl devices shows the device's condition; the job may run elsewhere (resources.device)"};
    case Failure::WORKER_CRASH:
      return {
          "the worker's log lies in the state directory, jobs/JOB; with little memory the kernel may have ended it"};
    case Failure::LIMIT:
      if (absl::StrContains(failure.message(), "limits.max_skip_ratio")) return AgainstDivergence(input);
      advice = {"raise the limit that the message names (limits), or make the job cheaper: ampctl plan FILE"};
      if (!input.job.summary().checkpoint().empty()) {
        const bool is_auto = input.job.spec().precision().mode() == v1::PrecisionSpec::AUTO;
        const std::string mode =
            is_auto ? absl::StrCat(" --set precision.mode=", v1::PrecisionSpec::Mode_Name(ModeOf(input.job))) : "";
        advice.push_back(
            absl::StrCat("with a higher limit a new job may go on where it stood: ampctl submit FILE "
                         "--continue-from ",
                         input.job.id(), mode));
      }
      return advice;
    case Failure::DISK_FULL:
      return {"make room in the daemon's state directory"};
    default:
      return {"this is a fault of the server's: its log and the worker's tell more"};
  }
}

Finding Failed(const WhyInput& input) {
  const Failure& failure = input.job.failure();
  Finding finding{input.job.state() == Job::RETRYING ? "failed, will try again" : "failed",
                  {FailureText(failure)},
                  ToTry(failure, input)};
  finding.because.push_back(absl::StrCat("attempt ", input.job.attempt(), ", ", input.job.failures(),
                                         input.job.failures() == 1 ? " failure" : " failures", " of at most ",
                                         input.job.spec().retry().max_attempts()));
  for (auto event = input.events.rbegin(); event != input.events.rend(); ++event) {
    if (!event->has_log() || event->log().severity() < v1::LogLine::WARNING) continue;
    finding.because.push_back(absl::StrCat("the last warning: ", Clean(event->log().text())));
    break;
  }
  return finding;
}

// Why the job came into its state.
std::vector<std::string> LastReason(const Events& events) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (!event->has_state_change()) continue;
    if (event->state_change().reason().empty()) break;
    return {Clean(event->state_change().reason())};
  }
  return {};
}

Finding Cancelled(const WhyInput& input) {
  Finding finding{"cancelled", LastReason(input.events), {}};
  if (finding.because.empty()) finding.because.emplace_back("somebody asked for it");
  return finding;
}

Finding Paused(const WhyInput& input) {
  Finding finding{"paused", LastReason(input.events), {}};
  if (input.job.pause_reason() == Job::NO_DISK_SPACE) {
    finding.because.emplace_back("it goes on from its last checkpoint by itself once there is room");
    finding.advice.emplace_back("make room in the server's state directory");
  } else {
    if (finding.because.empty()) finding.because.emplace_back("somebody asked for it");
    finding.advice.emplace_back("ampctl resume JOB queues it again");
  }
  return finding;
}

// What it did; of one that measures, cells are its steps.
std::string StepsText(const Job& job) {
  const v1::JobSummary& summary = job.summary();
  if (job.spec().has_bench()) return absl::StrCat(summary.step(), summary.step() == 1 ? " cell" : " cells");
  const int64_t before = StepsBefore(job.spec());
  return absl::StrCat(OwnSteps(job, summary.step()), " steps",
                      before > 0 ? absl::StrCat(" from step ", before + 1, " on") : "", ", ", summary.steps_skipped(),
                      " skipped");
}

Finding Succeeded(const WhyInput& input) {
  const v1::JobSummary& summary = input.job.summary();
  Finding finding{"succeeded", {}, {}};
  std::string text = StepsText(input.job);
  if (summary.has_loss()) absl::StrAppend(&text, ", loss ", Figure(summary.loss()));
  if (summary.has_accuracy()) absl::StrAppend(&text, ", accuracy ", Figure(summary.accuracy()));
  finding.because.push_back(text);
  for (const std::string& reason : LastReason(input.events)) finding.because.push_back(reason);
  const HeldTime held = HeldTimeOf(input.events, SecondsOf(input.job.end_time()));
  finding.because.push_back(absl::StrCat("it ran ", Duration(held.running_seconds)));
  return finding;
}

// Of the device that the job is or was last on.
absl::StatusOr<const v1::DeviceModel*> RatedModel(const Job& job, const Events& events,
                                                  const std::vector<v1::Device>& devices,
                                                  const std::vector<v1::DeviceModel>& models) {
  const std::vector<std::string> ids = DevicesOf(job, events);
  if (ids.empty()) return absl::FailedPreconditionError("which device it ran on is not known");
  const auto device = std::find_if(devices.begin(), devices.end(), [&](const auto& d) { return d.id() == ids[0]; });
  if (device == devices.end()) {
    return absl::FailedPreconditionError(absl::StrCat("its device ", ids[0], " is not there any more"));
  }
  constexpr char kWhere[] = "(device_models in the daemon's configuration)";
  const v1::DeviceModel* model = ModelOfDevice(models, *device);
  if (model == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server does not know the kind of its device, ", device->name(), " ", kWhere));
  }
  if (model->fp32_flops() > 0) return model;
  return absl::FailedPreconditionError(absl::StrCat("the peaks of its device, ", model->name(), ", are not ", kWhere));
}

}  // namespace

absl::StatusOr<v1::PlanJobRequest> FloorRequest(const Job& job, const Events& events,
                                                const std::vector<v1::Device>& devices,
                                                const std::vector<v1::DeviceModel>& models) {
  if (StepsOf(events).reported == 0) return absl::FailedPreconditionError("no step was reported");
  const v1::PrecisionSpec::Mode mode = ModeOf(job);
  if (mode == v1::PrecisionSpec::AUTO) return absl::FailedPreconditionError("AUTO has not taken a mode yet");
  const absl::StatusOr<const v1::DeviceModel*> model = RatedModel(job, events, devices, models);
  if (!model.ok()) return model.status();
  v1::PlanJobRequest request;
  *request.mutable_spec() = job.spec();
  // Layers are planned in the spec's own mode.
  request.mutable_spec()->mutable_precision()->set_mode(mode);
  request.set_device_model((*model)->name());
  request.add_modes(mode);
  return request;
}

std::vector<Finding> Why(const WhyInput& input) {
  std::vector<Finding> findings;
  const Job& job = input.job;
  if (job.state() == Job::QUEUED) findings.push_back(Queued(input));
  if (job.state() == Job::PAUSED) findings.push_back(Paused(input));
  if (job.has_failure()) findings.push_back(Failed(input));
  if (job.state() == Job::SUCCEEDED) findings.push_back(Succeeded(input));
  if (job.state() == Job::CANCELLED) findings.push_back(Cancelled(input));
  if (job.state() == Job::RECOVERING) {
    findings.push_back({"recovering", {"the daemon restarted and waits for the job's worker"}, {}});
  }
  if (job.state() == Job::STARTING)
    findings.push_back({"starting", {"its worker plans the model and opens the data"}, {}});
  for (Finding& finding : Skips(input)) findings.push_back(std::move(finding));
  // How fast it was is no matter where something else ended it.
  if (!job.has_failure() || job.failure().class_() == Failure::LIMIT) {
    for (Finding& finding : Speed(input)) findings.push_back(std::move(finding));
  }
  if (findings.empty())
    findings.push_back({absl::AsciiStrToLower(Job::State_Name(job.state())), {"nothing was reported yet"}, {}});
  return findings;
}

std::string WhyText(const Job& job, const std::vector<Finding>& findings) {
  std::string text = absl::StrCat(NameOf(job), ": ", StateText(job), "\n");
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, finding.what, "\n");
    for (const std::string& line : finding.because) absl::StrAppend(&text, "  ", line, "\n");
    for (const std::string& line : finding.advice) absl::StrAppend(&text, "  -> ", line, "\n");
  }
  return text;
}

std::string WhyJson(const Job& job, const std::vector<Finding>& findings) {
  const auto list = [](const std::vector<std::string>& lines) {
    return absl::StrCat(
        "[",
        absl::StrJoin(lines, ", ",
                      [](std::string* out, const std::string& line) { absl::StrAppend(out, JsonText(line)); }),
        "]");
  };
  std::vector<std::string> items;
  for (const Finding& f : findings) {
    items.push_back(absl::StrCat("{\"what\": ", JsonText(f.what), ", \"because\": ", list(f.because),
                                 ", \"advice\": ", list(f.advice), "}"));
  }
  return absl::StrCat("{\"job_id\": ", JsonText(job.id()), ", \"findings\": [", absl::StrJoin(items, ", "), "]}\n");
}

}  // namespace ampd::client
