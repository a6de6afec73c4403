#include "client/analysis/why.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/analysis/json_text.h"
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
constexpr double kManySkips = 0.01;
constexpr int64_t kDefaultGrowthInterval = 2000;
// `ampctl get` has that of the newest report.
constexpr char kMean[] = " (mean of the attempt)";

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

Finding InputBound(const StepCount& steps) {
  const double share = steps.input_wait_seconds / steps.total_seconds;
  Finding finding{"slow: input-bound", {}, {}};
  finding.because.push_back(absl::StrCat("the trainer waited for batches ", Percent(share),
                                         " of the time: ", StepTime(share * steps.step_seconds), " of ",
                                         StepTime(steps.step_seconds), " a step", kMean));
  if (share < 0.99) {
    finding.because.push_back(absl::StrFormat("fed in time it could go %.2f times as fast", 1 / (1 - share)));
  }
  finding.advice = {"give it more threads for batches (resources.cpu_threads)",
                    "keep decoded samples (data.cache), or store them at the size that is trained on"};
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

Finding WithFloor(const WhyInput& input, const StepCount& steps, double floor) {
  const double busy = steps.step_seconds - steps.input_wait_seconds / std::max<double>(1, steps.reported);
  const double times = busy / floor;
  const std::string figures =
      absl::StrFormat("a step takes %s%s%s, %.1f times the floor of %s that the device's peaks allow", StepTime(busy),
                      kMean, busy < steps.step_seconds ? " without its wait for batches" : "", times, StepTime(floor));
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

// An earlier attempt may have run on a device of another kind.
StepCount StepsOfNewestAttempt(const Events& events) {
  Events newest;
  for (const v1::JobEvent& event : events) {
    if (!event.has_step()) continue;
    if (!newest.empty() && event.attempt() != newest.back().attempt()) newest.clear();
    newest.push_back(event);
  }
  return StepsOf(newest);
}

std::vector<Finding> Speed(const WhyInput& input) {
  const StepCount steps = StepsOfNewestAttempt(input.events);
  if (steps.reported == 0 || !(steps.total_seconds > 0)) return {};
  if (steps.input_wait_seconds > kInputBound * steps.total_seconds) return {InputBound(steps)};
  const v1::ModeEstimate* mode = OwnMode(input);
  if (mode != nullptr) return {WithFloor(input, steps, mode->step_seconds())};
  const double share = steps.input_wait_seconds / steps.total_seconds;
  Finding finding{"speed", {}, {}};
  finding.because.push_back(absl::StrCat("a step takes ", StepTime(steps.step_seconds), kMean, ", ", Percent(share),
                                         " of it waiting for batches", UtilizationText(input.job)));
  finding.because.push_back(absl::StrCat("whether memory or computing bounds it is not known: ", NoFloor(input)));
  return {finding};
}

// The scale's way: from the first skip to the last.
std::string Trend(const std::vector<const v1::OverflowSkip*>& skips) {
  const double first = skips.front()->scale_before(), last = skips.back()->scale_after();
  if (first != last) return absl::StrCat("the scale went from ", Figure(first), " to ", Figure(last));
  double least = last, most = last;
  for (const v1::OverflowSkip* skip : skips) {
    least = std::min({least, skip->scale_before(), skip->scale_after()});
    most = std::max({most, skip->scale_before(), skip->scale_after()});
  }
  if (least == most) return absl::StrCat("the scale stays at ", Figure(last));
  return absl::StrCat("the scale went up and down between ", Figure(least), " and ", Figure(most), ", to ",
                      Figure(last));
}

std::string MostCommon(const std::map<std::string, int>& counts) {
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat(most->first, " (", most->second, " times)");
}

// Whether BF16 has more range.
bool IsNarrowerThanBf16(v1::PrecisionSpec::Mode mode) {
  return mode == v1::PrecisionSpec::FP16 || mode == v1::PrecisionSpec::FP8;
}

// What was not finite before the backward pass, no loss scale reaches.
bool IsForward(const v1::OverflowSkip& skip) {
  return skip.stage() == v1::OverflowSkip::FORWARD || skip.stage() == v1::OverflowSkip::LOSS ||
         skip.stage() == v1::OverflowSkip::INPUT;
}

bool OverflowsForward(const std::vector<const v1::OverflowSkip*>& skips) {
  const auto forward = std::count_if(skips.begin(), skips.end(), [](const auto* skip) { return IsForward(*skip); });
  return 2 * static_cast<size_t>(forward) > skips.size();
}

// The layer of the spec that a tensor is of, as precision.rules match it. Empty: presets and networks do not tell.
std::string LayerOf(const Job& job, const std::string& tensor) {
  std::string found;
  for (const v1::Layer& layer : job.spec().model().layers()) {
    const std::string& name = layer.name();
    const bool of = !name.empty() && (tensor == name || absl::StartsWith(tensor, absl::StrCat(name, ".")));
    if (of && name.size() > found.size()) found = name;
  }
  return found;
}

std::vector<std::string> AgainstForwardOverflow(const Job& job, const std::string& tensor) {
  std::vector<std::string> advice = {
      "no loss scale cures what overflows forward: lower the learning rate, warm it up, clip gradients "
      "(optimizer.clip_global_norm), and look at the data"};
  if (ModeOf(job) != v1::PrecisionSpec::FP16) return advice;
  const std::string layer = LayerOf(job, tensor);
  advice.push_back(absl::StrCat(
      "where inputs or activations are beyond FP16's 65504 by themselves, normalise them, use BF16, or keep the layer "
      "in "
      "FP32 with precision.rules",
      layer.empty() ? " (ampctl plan names the layers)" : absl::StrCat(" [{match: ", Clean(layer), ", dtype: FP32}]")));
  return advice;
}

// `calibrating`: no step was applied yet, and the skips are those of calibration.
Finding Skipping(const std::vector<const v1::OverflowSkip*>& skips, int64_t attempted, const Job& job,
                 bool calibrating) {
  const v1::PrecisionSpec::Mode mode = ModeOf(job);
  std::map<std::string, int> tensors, stages;
  for (const v1::OverflowSkip* skip : skips) {
    ++tensors[Clean(skip->first_tensor())];
    ++stages[v1::OverflowSkip::Stage_Name(skip->stage())];
  }
  const v1::OverflowSkip& last = *skips.back();
  Finding finding{"skipping", {}, {}};
  finding.because.push_back(absl::StrCat(skips.size(), " of ", attempted, " steps were skipped",
                                         calibrating ? ", none was applied" : " after calibration", ", the last ",
                                         last.step()));
  finding.because.push_back(absl::StrCat("first not finite: ", MostCommon(tensors), "; stage ", MostCommon(stages)));
  finding.because.push_back(Trend(skips));
  if (OverflowsForward(skips)) {
    finding.advice = AgainstForwardOverflow(job, last.first_tensor());
  } else if (IsNarrowerThanBf16(mode)) {
    finding.advice.push_back(
        "a skip now and then is how a dynamic scale finds its height; if they do not stop, lower the "
        "learning rate, clip gradients (optimizer.clip_global_norm) or use BF16");
  } else {
    finding.advice.push_back("lower the learning rate, warm it up, or clip gradients (optimizer.clip_global_norm)");
  }
  return finding;
}

// Those of `step` steps of a training that are this job's.
int64_t OwnSteps(const Job& job, int64_t step) { return std::max<int64_t>(0, step - StepsBefore(job.spec())); }

// Of skipped steps. A growing scale makes one in growth_interval + 1 by itself.
double ManySkips(const v1::LossScaleSpec& scale) {
  const int64_t interval = scale.has_growth_interval() ? scale.growth_interval() : kDefaultGrowthInterval;
  return std::max(kManySkips, 2 / static_cast<double>(interval + 1));
}

// Those of calibration are how a scale is found, and count where nothing else came of it.
std::vector<const v1::OverflowSkip*> SkipsOf(const WhyInput& input) {
  std::vector<const v1::OverflowSkip*> skips, calibration;
  for (const v1::OverflowSkip* skip : StandingSkips(input.events)) {
    (skip->calibration() ? calibration : skips).push_back(skip);
  }
  return skips.empty() && input.job.has_failure() && input.job.summary().steps_applied() == 0 ? calibration : skips;
}

std::vector<Finding> Skips(const WhyInput& input) {
  const std::vector<const v1::OverflowSkip*> skips = SkipsOf(input);
  if (skips.empty()) return {};
  const int64_t attempted = OwnSteps(input.job, LastStepOf(input.events));
  const bool many = static_cast<double>(skips.size()) > ManySkips(input.job.spec().precision().loss_scale()) *
                                                            static_cast<double>(std::max<int64_t>(attempted, 1));
  Finding finding = Skipping(skips, attempted, input.job, skips.front()->calibration());
  if (!many) finding.what = "skips, few";
  return {finding};
}

std::vector<std::string> AgainstDivergence(const WhyInput& input) {
  const v1::LossScaleSpec& scale = input.job.spec().precision().loss_scale();
  const v1::PrecisionSpec::Mode mode = ModeOf(input.job);
  std::vector<std::string> advice = {
      "lower the learning rate, warm it up, or clip gradients (optimizer.clip_global_norm)"};
  // Skips has what helps then.
  if (OverflowsForward(SkipsOf(input))) return advice;
  if (scale.kind() == v1::LossScaleSpec::STATIC) {
    advice.insert(advice.begin(),
                  absl::StrCat("the scale is static: lower precision.loss_scale.init, which is ",
                               absl::StrFormat("%.17g", scale.init()), ", or let it find its own (kind: DYNAMIC)"));
  }
  if (mode == v1::PrecisionSpec::FP16 && scale.kind() != v1::LossScaleSpec::STATIC &&
      scale.kind() != v1::LossScaleSpec::NONE) {
    advice.emplace_back("BF16 has FP32's range; precision.loss_scale.on_floor: FALLBACK_BF16 changes over by itself");
  } else if (IsNarrowerThanBf16(mode)) {
    advice.emplace_back("BF16 has FP32's range");
  }
  return advice;
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
