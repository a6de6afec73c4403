// Reads the GPUs once in a while, and waits for their errors, on threads of its own.
#ifndef AMPD_SERVER_GPU_GPU_MONITOR_H_
#define AMPD_SERVER_GPU_GPU_MONITOR_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/device.pb.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"
#include "server/gpu/gpu_ledger.h"
#include "server/gpu/nvml.h"

namespace ampd {

struct GpuMonitorOptions {
  // Between two readings.
  absl::Duration interval = absl::Seconds(1);
  // Told every device after each reading and each XID, from a thread of the monitor's, one call at a time.
  std::function<void(std::vector<v1::Device>)> publish;
  // Told of XIDs, and once when they can no longer be heard. As `publish`.
  std::function<void(const std::string&)> log;
};

class GpuMonitor {
 public:
  // `nvml` has identified `devices`, to which the conditions that do not pass are added; `clock` outlives this.
  GpuMonitor(std::unique_ptr<Nvml> nvml, std::vector<v1::Device> devices, GpuMonitorOptions options,
             const Clock* clock);
  // Ends within about half a second.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

 private:
  void ReadLoop();
  void XidLoop();
  // False once the monitor ends.
  bool Wait(absl::Duration time, bool until_news);

  const std::unique_ptr<Nvml> nvml_;
  const int gpus_;
  const GpuMonitorOptions options_;
  const Clock* const clock_;
  Mutex mutex_;
  CondVar changed_;
  GpuLedger ledger_ ABSL_GUARDED_BY(mutex_);
  // An XID came: publish at once.
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
  std::thread listener_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_GPU_GPU_MONITOR_H_
