#include "server/gpu/gpu_ledger.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gpu/xid.h"

namespace ampd {
namespace {

constexpr size_t kMaxErrors = 16;

std::string InWords(uint32_t xid) {
  const XidMeaning meaning = MeaningOfXid(xid);
  return absl::StrCat("XID ", xid, meaning.words[0] == '\0' ? "" : ": ", meaning.words);
}

v1::DeviceCondition Condition(v1::DeviceCondition::Kind kind, bool blocks, std::string message) {
  v1::DeviceCondition condition;
  condition.set_kind(kind);
  condition.set_blocks_jobs(blocks);
  condition.set_message(std::move(message));
  return condition;
}

}  // namespace

GpuLedger::GpuLedger(std::vector<v1::Device> identified) {
  for (v1::Device& device : identified) known_.push_back({.identity = std::move(device)});
}

void GpuLedger::OnReading(int gpu, v1::Device reading) { known_[gpu].reading = std::move(reading); }

std::string GpuLedger::OnXid(const XidEvent& event, absl::Time now) {
  Known& gpu = known_[event.gpu];
  const XidMeaning meaning = MeaningOfXid(event.xid);
  auto error = std::find_if(gpu.errors.begin(), gpu.errors.end(),
                            [&](const v1::XidError& known) { return known.xid() == event.xid; });
  v1::XidError newest = error == gpu.errors.end() ? v1::XidError() : *error;
  if (error != gpu.errors.end()) gpu.errors.erase(error);
  newest.set_xid(event.xid);
  newest.set_class_(meaning.error_class);
  newest.set_count(newest.count() + 1);
  *newest.mutable_time() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(now));
  if (gpu.errors.size() == kMaxErrors) gpu.errors.erase(gpu.errors.begin());
  gpu.errors.push_back(std::move(newest));
  if (meaning.error_class == v1::XidError::HARDWARE) {
    // One that needs a reset is not hidden by a lesser one after it.
    if (meaning.needs_reset || !gpu.needs_reset) gpu.hardware_xid = event.xid;
    gpu.needs_reset |= meaning.needs_reset;
  }
  return absl::StrCat(gpu.identity.id(), " (", gpu.identity.name(), "): ", InWords(event.xid), " (",
                      v1::XidError::Class_Name(meaning.error_class), ")");
}

std::vector<v1::Device> GpuLedger::Devices() const {
  std::vector<v1::Device> devices;
  for (const Known& gpu : known_) {
    v1::Device& device = devices.emplace_back(gpu.identity);
    device.MergeFrom(gpu.reading);
    for (const v1::XidError& error : gpu.errors) *device.mutable_gpu()->add_xid_errors() = error;
    if (device.gpu().mig_enabled()) {
      *device.add_conditions() =
          Condition(v1::DeviceCondition::MIG_ENABLED, true, "MIG is enabled; jobs run on whole GPUs alone");
    }
    if (gpu.hardware_xid == 0) continue;
    *device.add_conditions() =
        Condition(v1::DeviceCondition::HARDWARE_ERROR, gpu.needs_reset,
                  absl::StrCat(InWords(gpu.hardware_xid),
                               gpu.needs_reset ? "; reset or replace the GPU, then restart the server" : ""));
  }
  return devices;
}

}  // namespace ampd
