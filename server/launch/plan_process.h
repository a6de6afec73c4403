// Asks `ampd-worker --plan` what a job's model is, in a process of its own: a model that crashes or exhausts the
// planner costs its submitter an error and the daemon nothing.
#ifndef AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_
#define AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/worker_link.pb.h"
#include "server/launch/worker_exchange.h"

namespace ampd {

using PlanLimits = ExchangeLimits;

// The limits of production; the address space is left unlimited under sanitizers, which map terabytes.
PlanLimits DefaultPlanLimits();

// `limits` with the time and memory that reading the file of a request's model.onnx takes besides, by its size.
PlanLimits GrownByModelFile(PlanLimits limits, const v1::PlanRequest& request);

// Runs `worker --plan` and waits for it. Thread safe; blocks up to limits.timeout, as GrownByModelFile has it.
// UNAVAILABLE when the program cannot be started, DEADLINE_EXCEEDED when it takes too long, RESOURCE_EXHAUSTED when a
// limit or the kernel ended it, INTERNAL when it crashed or answered rubbish. The message ends with what it wrote to
// stderr, shortened.
absl::StatusOr<v1::PlanResponse> RunPlanProcess(const std::string& worker, const v1::PlanRequest& request,
                                                const PlanLimits& limits);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_
