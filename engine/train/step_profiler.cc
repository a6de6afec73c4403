#include "engine/train/step_profiler.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::train {
namespace {

using v1::ProfilePart;
using v1::StepProfile;

// Rows of each kind that an event holds.
constexpr size_t kMostRows = 256;

struct FixedPart {
  const char* name;
  ProfilePart::Stage stage;
};

// By StepPart.
constexpr FixedPart kFixedParts[] = {
    {"zero gradients", ProfilePart::BACKWARD},
    {"inputs", ProfilePart::INPUT},
    {"loss to the host", ProfilePart::HOST},
    {"sum over devices", ProfilePart::UPDATE},
    {"check gradients", ProfilePart::UPDATE},
    {"update", ProfilePart::UPDATE},
    {"commit running statistics", ProfilePart::UPDATE},
    {"publish parameters", ProfilePart::UPDATE},
};
constexpr size_t kFixedCount = std::size(kFixedParts);
static_assert(kFixedCount == static_cast<size_t>(StepPart::kPublish) + 1);

StepProfile::Timing TimingOf(runtime::LapTiming timing) {
  if (timing == runtime::LapTiming::kHostClock) return StepProfile::HOST_CLOCK;
  return timing == runtime::LapTiming::kDeviceEvents ? StepProfile::DEVICE_EVENTS : StepProfile::KERNEL_ACTIVITY;
}

ProfilePart PartOf(const runtime::PlanStep& step) {
  ProfilePart part;
  part.set_name(step.name);
  part.set_layer(step.layer);
  part.set_op(std::string(ir::OpName(step.op)));
  part.set_stage(step.stage == ir::Stage::kGradient ? ProfilePart::BACKWARD : ProfilePart::FORWARD);
  const auto& operands = step.inputs.empty() ? step.outputs : step.inputs;
  if (!operands.empty()) part.set_dtype(std::string(DTypeName(operands.front().type.dtype)));
  return part;
}

// The rows that fit, and their rest in one more.
void KeepLongest(google::protobuf::RepeatedPtrField<ProfilePart>* parts) {
  std::stable_sort(parts->begin(), parts->end(),
                   [](const ProfilePart& a, const ProfilePart& b) { return a.seconds() > b.seconds(); });
  const auto count = static_cast<size_t>(parts->size());
  if (count <= kMostRows) return;
  ProfilePart rest;
  rest.set_name(absl::StrCat(count - kMostRows, " others"));
  for (auto part = parts->begin() + kMostRows; part != parts->end(); ++part) {
    rest.set_calls(rest.calls() + part->calls());
    rest.set_seconds(rest.seconds() + part->seconds());
    rest.set_flops(rest.flops() + part->flops());
    rest.set_bytes(rest.bytes() + part->bytes());
  }
  parts->DeleteSubrange(kMostRows, static_cast<int>(count - kMostRows));
  *parts->Add() = std::move(rest);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepProfiler>> StepProfiler::Create(const PlannedModel& plan, int64_t steps,
                                                                   bool in_parts) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::LapTimer> timer, plan.backend->MakeLapTimer());
  std::unique_ptr<StepProfiler> profiler(new StepProfiler(plan, steps, in_parts, std::move(timer)));
  if (!in_parts) AMPD_RETURN_IF_ERROR(profiler->Start());
  return profiler;
}

StepProfiler::StepProfiler(const PlannedModel& plan, int64_t steps, bool in_parts,
                           std::unique_ptr<runtime::LapTimer> timer)
    : wanted_(steps), in_parts_(in_parts), timer_(std::move(timer)) {
  if (!in_parts) return;
  const bool named = plan.phases.size() > 1;
  for (const PlannedPhase& phase : plan.phases) AddFixedParts(phase, named);
  for (const PlannedPhase& phase : plan.phases) AddNodes(phase, named);
  seconds_.resize(parts_.size());
}

void StepProfiler::AddFixedParts(const PlannedPhase& phase, bool named) {
  for (const FixedPart& fixed : kFixedParts) {
    ProfilePart& part = parts_.emplace_back();
    part.set_name(fixed.name);
    part.set_stage(fixed.stage);
    if (named) part.set_phase(phase.name);
  }
}

void StepProfiler::AddNodes(const PlannedPhase& phase, bool named) {
  std::map<std::string, size_t> known;
  for (const runtime::Plan& plan : phase.plans) {
    for (const runtime::PlanStep& step : plan.steps) {
      const auto [at, inserted] = known.insert({step.name, parts_.size()});
      part_of_[&step] = at->second;
      if (!inserted) continue;
      parts_.push_back(PartOf(step));
      if (named) parts_.back().set_phase(phase.name);
    }
  }
}

absl::Status StepProfiler::After(size_t, const runtime::PlanStep& step) {
  const auto found = part_of_.find(&step);
  if (found == part_of_.end()) {
    return absl::InternalError(absl::StrCat("[step profiler] ", step.name, " is of another plan"));
  }
  ProfilePart& part = parts_[found->second];
  part.set_calls(part.calls() + 1);
  part.set_flops(part.flops() + step.cost.flops);
  part.set_bytes(part.bytes() + step.cost.bytes);
  return timer_->Lap(found->second);
}

absl::Status StepProfiler::After(size_t phase, StepPart part) {
  const size_t index = phase * kFixedCount + static_cast<size_t>(part);
  parts_[index].set_calls(parts_[index].calls() + 1);
  return timer_->Lap(index);
}

absl::Status StepProfiler::EndStep(int64_t step, double seconds, double wait_seconds) {
  ++steps_;
  last_step_ = step;
  step_seconds_ += seconds;
  wait_seconds_ += wait_seconds;
  return timer_->Collect(absl::MakeSpan(seconds_));
}

StepProfile StepProfiler::Profile(absl::optional<double> usual_seconds) const {
  StepProfile profile;
  profile.set_first_step(last_step_ - steps_ + 1);
  profile.set_last_step(last_step_);
  profile.set_timing(TimingOf(timer_->timing()));
  profile.set_step_seconds(step_seconds_ / static_cast<double>(steps_));
  profile.set_input_wait_seconds(wait_seconds_ / static_cast<double>(steps_));
  if (usual_seconds.has_value()) profile.set_usual_step_seconds(*usual_seconds);
  if (!in_parts_)
    profile.set_note("the network is so small that one kernel takes its steps: they have no parts to time");
  FillParts(&profile);
  FillKernels(&profile);
  return profile;
}

void StepProfiler::FillParts(StepProfile* profile) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].calls() == 0) continue;
    *profile->add_parts() = parts_[i];
    profile->mutable_parts()->rbegin()->set_seconds(seconds_[i]);
  }
  KeepLongest(profile->mutable_parts());
}

void StepProfiler::FillKernels(StepProfile* profile) const {
  std::vector<runtime::KernelTime> kernels = timer_->Kernels();
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::map<std::string, v1::ProfileKernel*> by_name;
  for (const runtime::KernelTime& kernel : kernels) {
    v1::ProfileKernel*& row = by_name[kernel.name];
    if (row == nullptr) {
      if (static_cast<size_t>(profile->kernels_size()) == kMostRows) continue;
      row = profile->add_kernels();
      row->set_name(kernel.name);
      if (kernel.part < parts_.size()) {
        row->set_layer(parts_[kernel.part].layer());
        row->set_op(parts_[kernel.part].op());
      }
    }
    row->set_calls(row->calls() + kernel.calls);
    row->set_seconds(row->seconds() + kernel.seconds);
  }
  std::stable_sort(profile->mutable_kernels()->begin(), profile->mutable_kernels()->end(),
                   [](const auto& a, const auto& b) { return a.seconds() > b.seconds(); });
}

}  // namespace ampd::train
