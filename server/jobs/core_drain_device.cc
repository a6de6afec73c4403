// Devices that jobs are kept off, by request.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

constexpr size_t kMaxReasonBytes = 200;

v1::DeviceCondition ConditionOf(const DrainRecord& drain) {
  v1::DeviceCondition condition;
  condition.set_kind(v1::DeviceCondition::DRAINED);
  condition.set_message(drain.reason);
  condition.set_blocks_jobs(true);
  *condition.mutable_since_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(drain.time));
  return condition;
}

absl::Status CheckReason(const std::string& reason) {
  if (reason.empty()) return InvalidFields({{"reason", "required"}});
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return InvalidFields({{"reason", absl::StrCat("must be at most ", kMaxReasonBytes, " bytes, is ", reason.size())}});
}

}  // namespace

absl::Status ControllerCore::RecoverDrains() {
  AMPD_ASSIGN_OR_RETURN(const std::vector<DrainRecord> drains,
                        store_->Await([](const Database& database) { return database.Drains(); }));
  for (const DrainRecord& drain : drains) {
    // One that is not there now may be again.
    if (DeviceSlot* slot = FindDevice(drain.device)) SetDrain(*slot, drain);
  }
  return absl::OkStatus();
}

void ControllerCore::SetDrain(DeviceSlot& slot, std::optional<DrainRecord> drain) {
  const v1::Device before = slot.device;
  slot.drain = std::move(drain);
  AddDrainCondition(slot);
  TakeConditions(slot, before);
  needs_schedule_ = true;
}

void ControllerCore::AddDrainCondition(DeviceSlot& slot) const {
  auto& conditions = *slot.device.mutable_conditions();
  for (int i = conditions.size() - 1; i >= 0; --i) {
    if (conditions[i].kind() == v1::DeviceCondition::DRAINED) conditions.DeleteSubrange(i, 1);
  }
  if (slot.drain) *conditions.Add() = ConditionOf(*slot.drain);
}

absl::StatusOr<v1::Device> ControllerCore::GetDevice(const std::string& id) const {
  for (v1::Device& device : ListDevices()) {
    if (device.id() == id) return std::move(device);
  }
  return absl::NotFoundError(absl::StrCat("no device ", id));
}

void ControllerCore::DrainDevice(const v1::DrainDeviceRequest& request, ReplyPtr<v1::Device> reply) {
  if (const absl::Status status = CheckReason(request.reason()); !status.ok()) return reply->Send(status);
  const absl::StatusOr<v1::Device> device = GetDevice(request.device_id());
  if (!device.ok()) return reply->Send(device.status());
  const DrainRecord drain{device->id(), request.reason(), clock_->Now(), request.stop_jobs()};
  store_->Change([drain](Database& database) { return database.SetDrain(drain); },
                 [this, drain, reply](const absl::Status& status) {
                   post_([this, drain, reply, status] {
                     if (!status.ok()) return reply->Send(status);
                     SetDrain(*FindDevice(drain.device), drain);
                     if (drain.stop_jobs) StopJobsOn(drain.device);
                     reply->Send(GetDevice(drain.device));
                   });
                 });
}

void ControllerCore::UndrainDevice(const std::string& id, ReplyPtr<v1::Device> reply) {
  const absl::StatusOr<v1::Device> device = GetDevice(id);
  if (!device.ok()) return reply->Send(device.status());
  store_->Change([id](Database& database) { return database.ClearDrain(id); },
                 [this, id, reply](const absl::Status& status) {
                   post_([this, id, reply, status] {
                     if (!status.ok()) return reply->Send(status);
                     SetDrain(*FindDevice(id), std::nullopt);
                     reply->Send(GetDevice(id));
                   });
                 });
}

bool ControllerCore::MustLeave(const LiveJob& live) {
  for (const std::string& id : live.job.proto().devices()) {
    const DeviceSlot* slot = FindDevice(id);
    if (slot != nullptr && slot->drain && slot->drain->stop_jobs) return true;
  }
  return false;
}

void ControllerCore::StopJobsOn(const std::string& device) {
  for (auto& [id, live] : live_) {
    const auto& held = live.job.proto().devices();
    if (std::find(held.begin(), held.end(), device) == held.end()) continue;
    const bool stops = live.stop != Stop::kNone && live.stop != Stop::kPreempt;
    if (live.has_worker && !live.finished && !stops) StopForLater(live, Stop::kMove, "its device is drained");
  }
}

}  // namespace ampd
