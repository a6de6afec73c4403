// Steps that a device takes by itself (runtime::StepLoop), timed.
#ifndef AMPD_TESTS_BENCH_DEVICE_STEPS_H_
#define AMPD_TESTS_BENCH_DEVICE_STEPS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/step_loop.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"

namespace ampd::bench {

// What some steps took.
struct DeviceTimes {
  // Seconds a step, of every window that was timed as a whole.
  std::vector<double> windows;
  // Seconds a step that the host spent in feeding and launching.
  double host = 0;
  int64_t steps = 0;
  // By any phase.
  int64_t applied = 0;
  // Steps at which the device stopped, because what a skip means takes a replay.
  int64_t replayed = 0;
  // Of the last step's last phase.
  double loss = 0;
};

// Thread-compatible.
class DeviceSteps {
 public:
  // Borrows all; every step trains on `batch`, whose `step` moves on. Steps are launched as `launch` says. `wait`
  // returns when the device has nothing more to do. Errors are the backend's; UNIMPLEMENTED where it leaves steps to
  // the host.
  static absl::StatusOr<std::unique_ptr<DeviceSteps>> Create(
      const train::PlannedModel& plan, train::LoadedModel* model,
      const std::vector<std::unique_ptr<train::StepRunner>>* runners, data::Batch* batch, runtime::StepLaunch launch,
      std::function<absl::Status()> wait);

  // How the loop takes its steps.
  runtime::StepLaunch launch() const { return loop_->launch(); }
  std::vector<std::string> notes() const { return loop_->notes(); }

  // At least `steps`, on batches that lie in the device's memory before the clock starts: windows of as many as it can
  // hold, or as are asked for. Windows in which a step was replayed are not timed.
  absl::StatusOr<DeviceTimes> Resident(int64_t steps);

  // `steps`, each on a batch that is fed while others are being taken: all of them one window.
  absl::StatusOr<DeviceTimes> Fed(int64_t steps);

 private:
  DeviceSteps(const train::PlannedModel& plan, const std::vector<std::unique_ptr<train::StepRunner>>* runners,
              data::Batch* batch, std::function<absl::Status()> wait)
      : plan_(plan), runners_(*runners), batch_(batch), wait_(std::move(wait)) {}

  uint64_t PhasesDue(int64_t step) const;
  absl::Status Start();
  absl::Status Feed(DeviceTimes* times);
  absl::Status LaunchFed(DeviceTimes* times);
  // Reads the records of the oldest step under way, and takes what is left of it where the device stopped.
  absl::Status Finish(DeviceTimes* times);
  absl::Status TakeOver(const runtime::StepRecord& record, DeviceTimes* times);

  const train::PlannedModel& plan_;
  const std::vector<std::unique_ptr<train::StepRunner>>& runners_;
  data::Batch* const batch_;
  const std::function<absl::Status()> wait_;
  std::unique_ptr<runtime::StepLoop> loop_;
  std::vector<optim::LossScalerState> scalers_;
  // Steps: the next to be finished, launched, fed.
  int64_t next_ = 0, launched_ = 0, fed_ = 0;
  std::vector<runtime::FedInput> inputs_;
  std::vector<runtime::MicroBatchWeight> weights_;
  std::vector<std::vector<float>> shares_;
};

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_DEVICE_STEPS_H_
