// Where a device's time goes: laps between points of what is launched on it.
#ifndef AMPD_ENGINE_RUNTIME_LAP_TIMER_H_
#define AMPD_ENGINE_RUNTIME_LAP_TIMER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/runtime/memory.h"

namespace ampd::runtime {

// What a lap is measured by.
enum class LapTiming {
  // The host's clock.
  kHostClock,
  // Events on the device: a lap holds the time in which the device waited for its launch too.
  kDeviceEvents,
  // The device's record of each kernel: a lap is what its kernels, copies and fills took.
  kKernelActivity,
};

// One kernel of the device, by its name there, as part `part` launched it.
struct KernelTime {
  std::string name;
  size_t part = 0;
  int64_t calls = 0;
  double seconds = 0;
};

// Thread-compatible, as the backend that made it, which outlives it. Errors are the device's.
class LapTimer {
 public:
  virtual ~LapTimer() = default;
  virtual LapTiming timing() const = 0;
  // What is launched from here on belongs to the lap that the next Lap() ends; what lies between the last Lap() and
  // this belongs to none.
  virtual absl::Status Start() = 0;
  // What was launched since Start() or the Lap() before is of part `part`.
  virtual absl::Status Lap(size_t part) = 0;
  // Returns when what the laps timed is done.
  virtual absl::Status Wait() = 0;
  // After Wait(): adds the seconds of each lap since the last Collect() to seconds[part]; every part is below
  // seconds.size().
  virtual absl::Status Collect(absl::Span<double> seconds) = 0;
  // Of kKernelActivity: what ran in laps until the last Collect().
  virtual std::vector<KernelTime> Kernels() const { return {}; }
  // Why there is less than was asked for; empty: there is not.
  virtual std::string note() const { return ""; }
};

// By the host's clock. Where `memory` is not the host's it waits for the device at every lap.
std::unique_ptr<LapTimer> MakeHostLapTimer(Memory* memory);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_LAP_TIMER_H_
