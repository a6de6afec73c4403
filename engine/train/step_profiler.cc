#include "engine/train/step_profiler.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    {"begin update", ProfilePart::BACKWARD},
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

void AddTo(const v1::ProfileKernel& from, v1::ProfileKernel* to) {
  to->set_calls(to->calls() + from.calls());
  to->set_seconds(to->seconds() + from.seconds());
}

void AddTo(const ProfilePart& from, ProfilePart* to) {
  to->set_calls(to->calls() + from.calls());
  to->set_seconds(to->seconds() + from.seconds());
  to->set_flops(to->flops() + from.flops());
  to->set_bytes(to->bytes() + from.bytes());
}

// The longest rows first, and those that do not fit summed up in one more.
template <typename Row>
void KeepLongest(google::protobuf::RepeatedPtrField<Row>* rows) {
  std::stable_sort(rows->begin(), rows->end(), [](const Row& a, const Row& b) { return a.seconds() > b.seconds(); });
  const auto count = static_cast<size_t>(rows->size());
  if (count <= kMostRows) return;
  Row rest;
  for (auto row = rows->begin() + kMostRows; row != rows->end(); ++row) AddTo(*row, &rest);
  rest.set_name(absl::StrCat(count - kMostRows, " others"));
  rows->DeleteSubrange(kMostRows, static_cast<int>(count - kMostRows));
  *rows->Add() = std::move(rest);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepProfiler>> StepProfiler::Create(const PlannedModel& plan, ProfileRequest request,
                                                                   ProfiledSteps steps) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::LapTimer> timer, plan.backend->MakeLapTimer(request.kernels));
  return std::unique_ptr<StepProfiler>(new StepProfiler(plan, request, steps, std::move(timer)));
}

StepProfiler::StepProfiler(const PlannedModel& plan, ProfileRequest request, ProfiledSteps kind,
                           std::unique_ptr<runtime::LapTimer> timer)
    : request_(request), kind_(kind), timer_(std::move(timer)) {
  if (kind == ProfiledSteps::kWhole) {
    parts_.emplace_back().set_name("steps in one kernel");
  } else {
    const bool named = plan.phases.size() > 1;
    for (const PlannedPhase& phase : plan.phases) AddFixedParts(phase, named);
    for (const PlannedPhase& phase : plan.phases) AddNodes(phase, named);
  }
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

void StepProfiler::Keep(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void StepProfiler::Start() {
  if (status_.ok()) Keep(timer_->Start());
}

void StepProfiler::Lap(size_t index) {
  if (status_.ok()) Keep(timer_->Lap(index));
}

void StepProfiler::After(const runtime::PlanStep& step) {
  const auto found = part_of_.find(&step);
  if (found == part_of_.end()) {
    return Keep(absl::InternalError(absl::StrCat("[step profiler] ", step.name, " is of another plan")));
  }
  ProfilePart& part = parts_[found->second];
  part.set_calls(part.calls() + 1);
  part.set_flops(part.flops() + step.cost.flops);
  part.set_bytes(part.bytes() + step.cost.bytes);
  Lap(found->second);
}

void StepProfiler::After(size_t phase, StepPart part) {
  ProfilePart& row = parts_[phase * kFixedCount + static_cast<size_t>(part)];
  row.set_calls(row.calls() + 1);
  AfterPiece(phase, part);
}

void StepProfiler::AfterPiece(size_t phase, StepPart part) { Lap(phase * kFixedCount + static_cast<size_t>(part)); }

void StepProfiler::Settle() {
  if (kind_ == ProfiledSteps::kWhole) {
    parts_[0].set_calls(parts_[0].calls() + 1);
    Lap(0);
  }
  if (status_.ok()) Keep(timer_->Wait());
}

void StepProfiler::EndStep(int64_t step, double seconds, double wait_seconds) {
  ++steps_;
  last_step_ = step;
  step_seconds_ += seconds;
  wait_seconds_ += wait_seconds;
  if (status_.ok()) Keep(timer_->Collect(absl::MakeSpan(seconds_)));
}

StepProfile StepProfiler::Profile(absl::optional<double> usual_seconds, const std::string& note) const {
  StepProfile profile;
  profile.set_first_step(last_step_ - steps_ + 1);
  profile.set_last_step(last_step_);
  profile.set_timing(TimingOf(timer_->timing()));
  profile.set_step_seconds(step_seconds_ / static_cast<double>(steps_));
  profile.set_input_wait_seconds(wait_seconds_ / static_cast<double>(steps_));
  if (usual_seconds.has_value()) profile.set_usual_step_seconds(*usual_seconds);
  std::vector<std::string> notes = {note, timer_->note()};
  if (kind_ == ProfiledSteps::kWhole) {
    notes.emplace_back("the network is so small that one kernel takes many steps of it: nobody tells their parts");
  }
  if (!status_.ok()) notes.push_back(absl::StrCat("timing failed: ", status_.message()));
  notes.erase(std::remove(notes.begin(), notes.end(), ""), notes.end());
  profile.set_note(absl::StrJoin(notes, "; "));
  // Figures of some of the steps would be taken for all of them.
  if (!status_.ok()) return profile;
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
  // Who launched most of a kernel comes first.
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::map<std::string, v1::ProfileKernel*> by_name;
  for (const runtime::KernelTime& kernel : kernels) {
    v1::ProfileKernel*& row = by_name[kernel.name];
    if (row == nullptr) {
      row = profile->add_kernels();
      row->set_name(kernel.name);
      row->set_layer(parts_[kernel.part].layer());
      row->set_op(parts_[kernel.part].op());
    }
    row->set_calls(row->calls() + kernel.calls);
    row->set_seconds(row->seconds() + kernel.seconds);
  }
  KeepLongest(profile->mutable_kernels());
}

}  // namespace ampd::train
