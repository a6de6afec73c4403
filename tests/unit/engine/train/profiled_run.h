// Trainings that are profiled amid their steps.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_PROFILED_RUN_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_PROFILED_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {

// A whole attempt; at the report of step `at` (0: before the first) a profile of `steps` steps is asked for.
inline absl::StatusOr<Outcome> TrainProfiled(const ResolvedJobSpec& spec, const TrainerOptions& options,
                                             Recorder* recorder, int64_t at, int64_t steps) {
  auto trainer = Trainer::Create(spec, options, recorder);
  if (!trainer.ok()) return trainer.status();
  if (at == 0) (*trainer)->Profile({steps});
  recorder->on_event = [&trainer, at, steps](const v1::JobEvent& event) {
    if (event.has_step() && event.step().last_step() == at) (*trainer)->Profile({steps});
    return absl::OkStatus();
  };
  auto outcome = (*trainer)->Run();
  recorder->on_event = nullptr;
  return outcome;
}

// Takes the profiles out of what was told.
inline std::vector<v1::StepProfile> TakeProfiles(Recorder* recorder) {
  std::vector<v1::StepProfile> profiles;
  std::vector<v1::JobEvent> others;
  for (const v1::JobEvent& event : recorder->events) {
    if (event.has_step_profile()) {
      profiles.push_back(event.step_profile());
    } else {
      others.push_back(event);
    }
  }
  recorder->events = others;
  return profiles;
}

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_PROFILED_RUN_H_
