#include "server/gpu/gpu_monitor.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

// How long the end of the monitor may have to wait for a listener that waits.
constexpr absl::Duration kListen = absl::Milliseconds(500);
constexpr absl::Duration kAfterError = absl::Seconds(5);

}  // namespace

GpuMonitor::GpuMonitor(std::unique_ptr<Nvml> nvml, std::vector<v1::Device> devices, GpuMonitorOptions options,
                       const Clock* clock)
    : nvml_(std::move(nvml)), options_(std::move(options)), clock_(clock), ledger_(std::move(devices)) {
  reader_ = std::thread([this] { ReadLoop(); });
  listener_ = std::thread([this] { XidLoop(); });
}

GpuMonitor::~GpuMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  reader_.join();
  listener_.join();
}

bool GpuMonitor::Wait(absl::Duration time, const bool* wake) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(time),
                    [this, wake] { return stopping_ || (wake != nullptr && *wake); });
  return !stopping_;
}

void GpuMonitor::ReadLoop() {
  do {
    std::vector<v1::Device> readings;
    // Without the lock: a driver in trouble answers late.
    for (int gpu = 0; gpu < ledger_.size(); ++gpu) readings.push_back(nvml_->Read(gpu));
    std::vector<v1::Device> devices;
    {
      const std::lock_guard lock(mutex_);
      news_ = false;
      for (int gpu = 0; gpu < ledger_.size(); ++gpu) ledger_.OnReading(gpu, std::move(readings[gpu]));
      devices = ledger_.Devices();
    }
    options_.publish(std::move(devices));
  } while (Wait(options_.interval, &news_));
}

void GpuMonitor::XidLoop() {
  bool told = false;
  while (true) {
    const absl::StatusOr<std::optional<XidEvent>> event = nvml_->WaitForXid(kListen);
    if (!event.ok()) {
      if (!std::exchange(told, true)) options_.log(absl::StrCat("no XIDs: ", std::string(event.status().message())));
      if (absl::IsUnimplemented(event.status()) || !Wait(kAfterError, nullptr)) return;
      continue;
    }
    told = false;
    std::string words;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (!event->has_value()) continue;
      words = ledger_.OnXid(**event, clock_->Now());
      news_ = true;
    }
    changed_.notify_all();
    options_.log(words);
  }
}

}  // namespace ampd
