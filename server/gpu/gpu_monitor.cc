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
    : nvml_(std::move(nvml)),
      gpus_(static_cast<int>(devices.size())),
      options_(std::move(options)),
      clock_(clock),
      ledger_(std::move(devices)) {
  reader_ = std::thread([this] { ReadLoop(); });
  listener_ = std::thread([this] { XidLoop(); });
}

GpuMonitor::~GpuMonitor() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  reader_.join();
  listener_.join();
}

bool GpuMonitor::Wait(absl::Duration time, bool until_news) {
  const MutexLock lock(&mutex_);
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(time);
  while (!stopping_ && !(until_news && news_) && changed_.WaitUntil(&mutex_, deadline)) {
  }
  return !stopping_;
}

void GpuMonitor::ReadLoop() {
  do {
    std::vector<v1::Device> readings;
    // Without the lock: a driver in trouble answers late.
    for (int gpu = 0; gpu < gpus_; ++gpu) readings.push_back(nvml_->Read(gpu));
    std::vector<v1::Device> devices;
    {
      const MutexLock lock(&mutex_);
      news_ = false;
      for (int gpu = 0; gpu < gpus_; ++gpu) ledger_.OnReading(gpu, std::move(readings[gpu]));
      devices = ledger_.Devices();
    }
    options_.publish(std::move(devices));
  } while (Wait(options_.interval, /*until_news=*/true));
}

void GpuMonitor::XidLoop() {
  bool told = false;
  while (true) {
    const absl::StatusOr<std::optional<XidEvent>> event = nvml_->WaitForXid(kListen);
    if (!event.ok()) {
      if (!std::exchange(told, true)) options_.log(absl::StrCat("no XIDs: ", std::string(event.status().message())));
      if (absl::IsUnimplemented(event.status()) || !Wait(kAfterError, /*until_news=*/false)) return;
      continue;
    }
    told = false;
    std::string words;
    {
      const MutexLock lock(&mutex_);
      if (stopping_) return;
      if (!event->has_value()) continue;
      words = ledger_.OnXid(**event, clock_->Now());
      news_ = true;
    }
    changed_.NotifyAll();
    options_.log(words);
  }
}

}  // namespace ampd
