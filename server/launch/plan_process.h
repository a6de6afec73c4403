// Asks `ampd-worker --plan` what a job's model is, in a process of its own: a model that crashes or exhausts the
// planner costs its submitter an error and the daemon nothing.
#ifndef AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_
#define AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/worker_link.pb.h"

namespace ampd {

struct PlanLimits {
  absl::Duration timeout = absl::Seconds(30);
  // 0 is unlimited, for both.
  uint64_t cpu_seconds = 20;
  uint64_t address_space_bytes = 0;
  // Of the answer.
  size_t max_output_bytes = 16u << 20;
};

// The limits of production; the address space is left unlimited under sanitizers, which map terabytes.
PlanLimits DefaultPlanLimits();

// Runs `worker --plan` and waits for it. Thread safe; blocks up to limits.timeout.
// UNAVAILABLE when the program cannot be started, DEADLINE_EXCEEDED when it takes too long, RESOURCE_EXHAUSTED when a
// limit or the kernel ended it, INTERNAL when it crashed or answered rubbish. The message ends with what it wrote to
// stderr, shortened.
absl::StatusOr<v1::PlanResponse> RunPlanProcess(const std::string& worker, const v1::PlanRequest& request,
                                                const PlanLimits& limits);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_PLAN_PROCESS_H_
