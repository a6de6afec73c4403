// What a step's products cost, by the model alone.
#ifndef AMPD_ENGINE_TRAIN_STEP_FLOPS_H_
#define AMPD_ENGINE_TRAIN_STEP_FLOPS_H_

#include "absl/types/optional.h"
#include "ampd/v1/job.pb.h"
#include "engine/train/planned_model.h"

namespace ampd::train {

// v1::ModelPlan.step_flops: the floating-point operations (a multiply-add is two) of the products, convolutions,
// attention and recurrent layers of one step over a whole batch, each phase by the share of steps in which it runs.
// What is computed a second time to save memory does not count: of attention's gradient 4 products of 5. nullopt with
// length buckets, where steps differ.
absl::optional<double> StepFlops(const PlannedModel& planned, const v1::TrainSpec& train);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_STEP_FLOPS_H_
