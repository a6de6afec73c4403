// Times the parts of a training's steps, for people who ask where the time goes.
#ifndef AMPD_ENGINE_TRAIN_STEP_PROFILER_H_
#define AMPD_ENGINE_TRAIN_STEP_PROFILER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/event.pb.h"
#include "engine/runtime/lap_timer.h"
#include "engine/train/planned_model.h"
#include "engine/train/trainer.h"

namespace ampd::train {

// What a step does besides the nodes of its plan, of each phase.
enum class StepPart { kZero, kInputs, kLoss, kReduce, kCheck, kUpdate, kCommit, kPublish };

// Who takes the steps that are profiled.
enum class ProfiledSteps {
  // The host, launching what After() tells of.
  kParts,
  // A device, many steps in one kernel, of which nobody tells the parts.
  kWhole,
};

// Thread-compatible. It looks on: what is profiled computes what it would have computed, and goes on where timing it
// fails (status()).
class StepProfiler {
 public:
  // Of the next request.steps >= 1 steps. `plan` outlives it, for its plans' nodes are known by their addresses. Errors
  // are the device's.
  static absl::StatusOr<std::unique_ptr<StepProfiler>> Create(const PlannedModel& plan, ProfileRequest request,
                                                              ProfiledSteps steps);

  // A phase's step begins, or of kWhole one that may launch others: what is launched next belongs to what is told next.
  void Start();
  // `step` of a phase's plan, or this part of the phase, was launched since Start() or what was told before.
  void After(const runtime::PlanStep& step);
  void After(size_t phase, StepPart part);
  // As After(), but of a part that is in several pieces and told of as a whole by After().
  void AfterPiece(size_t phase, StepPart part);

  // A step is launched: waits for the device, which is time of the step too.
  void Settle();
  // After Settle(): step `step`, from 1, took `seconds`, of which it waited `wait_seconds` for its batch.
  void EndStep(int64_t step, double seconds, double wait_seconds);

  // The first error of timing; after one nothing is timed any more.
  const absl::Status& status() const { return status_; }
  ProfiledSteps kind() const { return kind_; }
  // Steps that have ended, and that are still to come.
  int64_t steps() const { return steps_; }
  int64_t left() const { return request_.steps - steps_; }
  // At least one step has ended. `usual_seconds`: of a step that is not profiled, where that is known. `note`: besides
  // what it notes itself.
  v1::StepProfile Profile(absl::optional<double> usual_seconds, const std::string& note) const;

 private:
  StepProfiler(const PlannedModel& plan, ProfileRequest request, ProfiledSteps kind,
               std::unique_ptr<runtime::LapTimer> timer);
  void AddFixedParts(const PlannedPhase& phase, bool named);
  void AddNodes(const PlannedPhase& phase, bool named);
  void Lap(size_t index);
  void Keep(const absl::Status& status);
  void FillParts(v1::StepProfile* profile) const;
  void FillKernels(v1::StepProfile* profile) const;

  const ProfileRequest request_;
  const ProfiledSteps kind_;
  const std::unique_ptr<runtime::LapTimer> timer_;
  absl::Status status_;
  // Of kParts the fixed parts of every phase, then the nodes; with their seconds apart.
  std::vector<v1::ProfilePart> parts_;
  std::vector<double> seconds_;
  // A node of several buckets' plans is one part.
  std::unordered_map<const runtime::PlanStep*, size_t> part_of_;
  int64_t steps_ = 0;
  int64_t last_step_ = 0;
  double step_seconds_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_STEP_PROFILER_H_
