// The devices: who holds them, what is wrong with them, which job can use which.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/core.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/capability.h"
#include "server/scheduling/devices.h"
#include "server/scheduling/peak.h"

namespace ampd {
namespace {

// A reading may be older than the end of a worker, and a driver takes its time to let go of one.
constexpr absl::Duration kAfterWorker = absl::Seconds(10);

const v1::DeviceCondition* FindCondition(const v1::Device& device, v1::DeviceCondition::Kind kind) {
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (condition.kind() == kind) return &condition;
  }
  return nullptr;
}

bool Blocked(const v1::Device& device) {
  return std::any_of(device.conditions().begin(), device.conditions().end(),
                     [](const v1::DeviceCondition& condition) { return condition.blocks_jobs(); });
}

// What keeps jobs off a blocked device.
v1::Job::QueueReason ReasonOf(const v1::Device& device) {
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (condition.blocks_jobs() && condition.kind() != v1::DeviceCondition::FOREIGN_PROCESS) {
      return v1::Job::DEVICE_UNHEALTHY;
    }
  }
  return v1::Job::FOREIGN_PROCESS;
}

}  // namespace

ControllerCore::DeviceSlot* ControllerCore::FindDevice(const std::string& id) {
  for (DeviceSlot& slot : devices_) {
    if (slot.device.id() == id) return &slot;
  }
  return nullptr;
}

std::vector<v1::Device> ControllerCore::ListDevices() const {
  std::vector<v1::Device> devices;
  const int64_t memory_used = MemoryUsedBytes();
  for (const DeviceSlot& slot : devices_) {
    v1::Device& device = devices.emplace_back(slot.device);
    device.set_job_id(slot.job_id);
    if (device.kind() != v1::Device::CPU) continue;
    device.set_memory_used_bytes(memory_used);
    const auto live = live_.find(slot.job_id);
    device.set_utilization(live != live_.end() && live->second.meter ? live->second.meter->value() : 0);
  }
  return devices;
}

void ControllerCore::PublishDevices() {
  if (metrics_ != nullptr) metrics_->SetDevices(ListDevices());
}

void ControllerCore::AddDevices(SchedulingSnapshot* snapshot) const {
  for (const DeviceSlot& slot : devices_) {
    if (!slot.job_id.empty()) continue;
    if (Blocked(slot.device)) {
      snapshot->held_back.push_back({slot.device.id(), ReasonOf(slot.device)});
    } else {
      snapshot->free_devices.push_back(slot.device.id());
    }
  }
}

const std::vector<std::string>& ControllerCore::UnusableDevices(LiveJob& live) const {
  if (live.unusable_devices) return *live.unusable_devices;
  live.unusable_devices.emplace();
  for (const DeviceSlot& slot : devices_) {
    if (!CanRun(live.job.proto().spec(), slot.device)) live.unusable_devices->push_back(slot.device.id());
  }
  return *live.unusable_devices;
}

void ControllerCore::ReleaseDevice(LiveJob& live) {
  if (DeviceSlot* slot = FindDevice(live.device); slot != nullptr && slot->job_id == live.job.id()) {
    slot->job_id.clear();
    slot->last_pid = live.job.record().worker.pid;
    slot->freed = clock_->Monotonic();
  }
  live.device.clear();
}

// The job whose worker `pid` is; "" for a process of others; nullopt for what will be gone soon.
std::optional<std::string> ControllerCore::JobOfProcess(const DeviceSlot& slot, int64_t pid) const {
  const bool just_freed = slot.last_pid != 0 && clock_->Monotonic() - slot.freed < kAfterWorker;
  if (!options_.same_pid_namespace) {
    if (slot.job_id.empty() && just_freed) return std::nullopt;
    return slot.job_id;
  }
  for (const auto& [id, live] : live_) {
    if (live.has_worker && live.job.record().worker.pid == pid) return id;
  }
  if (just_freed && slot.last_pid == pid) return std::nullopt;
  return "";
}

void ControllerCore::RateStep(const LiveJob& live, v1::StepReport* step) {
  step->clear_model_flops_utilization();
  const v1::Job& job = live.job.proto();
  const DeviceSlot* slot = FindDevice(live.device);
  if (slot == nullptr || !job.plan().has_step_flops() || !(step->step_seconds() > 0)) return;
  const v1::PrecisionSpec::Mode asked = job.spec().precision().mode();
  const std::optional<double> peak =
      PeakFlops(options_.device_models, slot->device, asked == v1::PrecisionSpec::AUTO ? job.summary().mode() : asked);
  if (peak) step->set_model_flops_utilization(job.plan().step_flops() / step->step_seconds() / *peak);
}

// Names the jobs of the device's processes; a process of others becomes a condition.
void ControllerCore::JudgeProcesses(DeviceSlot& slot) const {
  std::vector<std::string> foreign;
  for (v1::GpuProcess& process : *slot.device.mutable_gpu()->mutable_processes()) {
    const std::optional<std::string> job = JobOfProcess(slot, process.pid());
    if (job) process.set_job_id(*job);
    if (job && job->empty()) foreign.push_back(absl::StrCat(process.pid()));
  }
  if (foreign.empty()) return;
  v1::DeviceCondition& condition = *slot.device.add_conditions();
  condition.set_kind(v1::DeviceCondition::FOREIGN_PROCESS);
  condition.set_blocks_jobs(true);
  condition.set_message(absl::StrCat(foreign.size() == 1 ? "process " : "processes ", absl::StrJoin(foreign, ", "),
                                     " of others ", foreign.size() == 1 ? "computes" : "compute", " on it"));
}

// Dates the conditions and tells of those that came and went.
void ControllerCore::TakeConditions(DeviceSlot& slot, const v1::Device& before) {
  for (v1::DeviceCondition& condition : *slot.device.mutable_conditions()) {
    const v1::DeviceCondition* known = FindCondition(before, condition.kind());
    if (known != nullptr && known->has_since_time()) {
      *condition.mutable_since_time() = known->since_time();
      continue;
    }
    *condition.mutable_since_time() =
        google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_->Now()));
    Log(absl::StrCat("device ", slot.device.id(), ": ", v1::DeviceCondition::Kind_Name(condition.kind()), ": ",
                     condition.message()));
  }
  for (const v1::DeviceCondition& condition : before.conditions()) {
    if (FindCondition(slot.device, condition.kind()) != nullptr) continue;
    Log(absl::StrCat("device ", slot.device.id(), ": no more ", v1::DeviceCondition::Kind_Name(condition.kind())));
  }
  if (Blocked(slot.device) != Blocked(before)) needs_schedule_ = true;
}

void ControllerCore::UpdateDevices(std::vector<v1::Device> devices) {
  for (v1::Device& device : devices) {
    DeviceSlot* slot = FindDevice(device.id());
    if (slot == nullptr) continue;
    const v1::Device before = std::exchange(slot->device, std::move(device));
    slot->device.set_threads(before.threads());
    if (slot->device.has_gpu()) JudgeProcesses(*slot);
    TakeConditions(*slot, before);
  }
  PublishDevices();
}

}  // namespace ampd
