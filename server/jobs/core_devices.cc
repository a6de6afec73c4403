// The devices: who holds them, what is wrong with them, which job can use which.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/core.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/capability.h"
#include "server/scheduling/device_groups.h"
#include "server/scheduling/devices.h"
#include "server/scheduling/peak.h"

namespace ampd {
namespace {

// A reading may be older than the end of a worker, and a driver takes its time to let go of one.
constexpr absl::Duration kAfterWorker = absl::Seconds(10);

// Devices are published with every round of scheduling.
constexpr absl::Duration kMemoryReadEvery = absl::Seconds(1);

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
  v1::Job::QueueReason reason = v1::Job::FOREIGN_PROCESS;
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (!condition.blocks_jobs() || condition.kind() == v1::DeviceCondition::FOREIGN_PROCESS) continue;
    // Whoever drained it knows why, whatever else is wrong with it.
    if (condition.kind() == v1::DeviceCondition::DRAINED) return v1::Job::GPU_DRAINED;
    reason = v1::Job::DEVICE_UNHEALTHY;
  }
  return reason;
}

std::string MessageOf(const v1::Device& device) {
  std::vector<std::string> texts;
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (condition.blocks_jobs()) {
      texts.push_back(absl::StrCat(v1::DeviceCondition::Kind_Name(condition.kind()), ": ", condition.message()));
    }
  }
  return absl::StrJoin(texts, "; ");
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
  const absl::Duration now = clock_->Monotonic();
  if (now >= memory_read_at_ + kMemoryReadEvery) {
    memory_used_ = MemoryUsedBytes();
    memory_read_at_ = now;
  }
  for (const DeviceSlot& slot : devices_) {
    v1::Device& device = devices.emplace_back(slot.device);
    double utilization = 0;
    int64_t planned = 0;
    for (const std::string& id : slot.job_ids) {
      device.add_job_ids(id);
      const auto live = live_.find(id);
      if (live == live_.end()) continue;
      const v1::ModelPlan& plan = live->second.job.proto().plan();
      planned += plan.parameter_bytes() + plan.activation_bytes();
      if (live->second.meter) utilization += live->second.meter->value();
    }
    device.set_reserved_memory_bytes(planned);
    if (!slot.job_ids.empty()) device.set_job_id(slot.job_ids.front());
    if (device.kind() != v1::Device::CPU) continue;
    device.set_memory_used_bytes(memory_used_);
    device.set_utilization(std::min(1.0, utilization));
  }
  return devices;
}

void ControllerCore::PublishDevices() {
  if (metrics_ != nullptr) metrics_->SetDevices(ListDevices());
}

void ControllerCore::AddDevices(SchedulingSnapshot* snapshot) const {
  if (snapshot->devices.empty()) {
    std::vector<v1::Device> devices;
    for (const DeviceSlot& slot : devices_) devices.push_back(slot.device);
    const std::vector<int> groups = DeviceGroups(devices);
    for (size_t i = 0; i < devices.size(); ++i) {
      snapshot->devices.push_back({devices[i].id(), groups[i], ShareBytes(devices, i), OwnBytes(devices[i])});
    }
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    DeviceState& state = snapshot->devices[i];
    const bool blocked = Blocked(devices_[i].device);
    state.held_back = blocked ? ReasonOf(devices_[i].device) : v1::Job::QUEUE_REASON_UNSPECIFIED;
    state.held_back_message = blocked ? MessageOf(devices_[i].device) : "";
  }
}

const DeviceSet& ControllerCore::UsableDevices(LiveJob& live) const {
  if (live.usable_devices) return *live.usable_devices;
  live.usable_devices.emplace();
  for (const DeviceSlot& slot : devices_) {
    const v1::JobSpec& spec = live.job.proto().spec();
    const bool unpriced = spec.limits().has_max_cost_usd() && !HasPrice(slot.device);
    live.usable_devices->push_back(!unpriced && CanRun(spec, slot.device));
  }
  return *live.usable_devices;
}

void ControllerCore::ReleaseDevices(LiveJob& live) {
  CountIdle();
  for (const std::string& device : live.devices) {
    DeviceSlot* slot = FindDevice(device);
    if (slot == nullptr || std::erase(slot->job_ids, live.job.id()) == 0) continue;
    const absl::Duration now = clock_->Monotonic();
    std::erase_if(slot->gone, [now](const GoneWorker& gone) { return now - gone.at >= kAfterWorker; });
    if (live.job.record().worker.pid != 0) slot->gone.push_back({live.job.record().worker.pid, now});
  }
  live.devices.clear();
}

// The job whose worker `pid` is; "" for a process of others; nullopt for what will be gone soon.
std::optional<std::string> ControllerCore::JobOfProcess(const DeviceSlot& slot, int64_t pid) const {
  const auto is_fresh = [now = clock_->Monotonic()](const GoneWorker& gone) { return now - gone.at < kAfterWorker; };
  if (!options_.same_pid_namespace) {
    if (slot.job_ids.empty() && std::any_of(slot.gone.begin(), slot.gone.end(), is_fresh)) return std::nullopt;
    return slot.job_ids.empty() ? "" : slot.job_ids.front();
  }
  for (const auto& [id, live] : live_) {
    if (live.has_worker && live.job.record().worker.pid == pid) return id;
  }
  const bool was_ours = std::any_of(slot.gone.begin(), slot.gone.end(),
                                    [&](const GoneWorker& gone) { return gone.pid == pid && is_fresh(gone); });
  return was_ours ? std::nullopt : std::optional<std::string>("");
}

void ControllerCore::RateStep(const LiveJob& live, v1::StepReport* step) {
  step->clear_model_flops_utilization();
  const v1::Job& job = live.job.proto();
  const DeviceSlot* slot = live.devices.empty() ? nullptr : FindDevice(live.devices.front());
  if (slot == nullptr || !job.plan().has_step_flops() || !(step->step_seconds() > 0)) return;
  const v1::PrecisionSpec::Mode asked = job.spec().precision().mode();
  const std::optional<double> peak =
      PeakFlops(options_.device_models, slot->device, asked == v1::PrecisionSpec::AUTO ? job.summary().mode() : asked);
  const auto devices = static_cast<double>(live.devices.size());
  if (peak) step->set_model_flops_utilization(job.plan().step_flops() / step->step_seconds() / (*peak * devices));
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
    AddDrainCondition(*slot);
    TakeConditions(*slot, before);
  }
  PublishDevices();
}

}  // namespace ampd
