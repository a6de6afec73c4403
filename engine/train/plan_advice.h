// What would make a job cheaper on a kind of device. Every piece of advice was tried: the changed job was planned, and
// its estimate is better.
#ifndef AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_
#define AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_

#include <vector>

#include "ampd/v1/plan.pb.h"
#include "engine/train/plan_report.h"

namespace ampd::train {

// For the job `spec`, whose plan and costs these are, on the planner's kind of device; `modes` as estimated, FP32
// first. "Better" is: ALIGN and PAD_VOCABULARY lower the step's floor, or the time for an operation that is not
// padding, by half a percent at least; a batch lowers the floor a sample, RAISE_BATCH by a tenth for each doubling, up
// to eightfold; WIDEN makes a tenth more operations a second; MODE is a faster mode, or one as fast that needs no mixed
// precision; MEMORY makes the job fit. Where the device's speed is not known there is advice on memory alone.
std::vector<v1::Advice> AdviceFor(const DevicePlanner& planner, const ResolvedJobSpec& spec,
                                  const PlannedModel& planned, const StepCosts& costs,
                                  const google::protobuf::RepeatedPtrField<v1::ModeEstimate>& modes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLAN_ADVICE_H_
