// What would make a job cheaper on a kind of device. Every piece of advice was tried: the changed job was planned, and
// its estimate is better.
#ifndef AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_
#define AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_

#include <vector>

#include "ampd/v1/plan.pb.h"
#include "engine/train/plan_report.h"

namespace ampd::train {

// For the job `spec`, whose plan and costs these are, on the planner's kind of device. `report` has the modes as
// estimated, FP32 first, and the library by whose plans, where any was asked. "Better" is: ALIGN and PAD_VOCABULARY
// lower the step's floor, or the time for an operation that is not padding, by half a percent at least, and widths that
// pay more together than one by one are one piece, before those that pay alone; a batch lowers the floor a sample,
// RAISE_BATCH by a tenth for each doubling, up to eightfold, and the training set fills it; WIDEN makes a tenth more
// operations a second; MODE is a faster mode, or one as fast that needs no mixed precision, unless alignment would make
// the job's faster; MEMORY makes the job fit, its batch being what it was. Where the device's speed is not known there
// is advice on memory alone.
std::vector<v1::Advice> AdviceFor(const DevicePlanner& planner, const ResolvedJobSpec& spec, const DevicePlan& plan,
                                  const StepCosts& costs, const v1::PlanReport& report);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_
