// Why a job is as it is: queued, slow, skipping, failed. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_WHY_H_
#define AMPD_CLIENT_ANALYSIS_WHY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/plan.pb.h"
#include "client/analysis/events.h"

namespace ampd::client {

struct WhyInput {
  v1::Job job;
  Events events;
  // Jobs that have not ended, in any order.
  std::vector<v1::Job> others;
  std::vector<v1::Device> devices;
  // The answer to FloorRequest, where it could be had, else why not.
  absl::optional<v1::PlanReport> plan;
  std::string no_plan;
  // Unix seconds.
  double now = 0;
};

// What to ask PlanJob for a floor to hold the job's steps against: on the kind of the device that it is or was last on,
// in the mode that it trains in. `models`: ServerInfo.device_models. FAILED_PRECONDITION: why there can be none.
absl::StatusOr<v1::PlanJobRequest> FloorRequest(const v1::Job& job, const Events& events,
                                                const std::vector<v1::Device>& devices,
                                                const std::vector<v1::DeviceModel>& models);

struct Finding {
  // "queued", "slow: input-bound", "skipping", "failed", "succeeded", ...
  std::string what;
  // Sentences with the figures.
  std::vector<std::string> because;
  // What to do about it.
  std::vector<std::string> advice;
};

// In the order of importance; at least one.
//
// Slow is told from the step reports of the newest attempt, of those after its first epoch once these are an epoch's or
// a hundred steps: input-bound where the trainer waited for batches for more than a fifth of the time; else, where a
// floor is known, far above it where a step takes more than four times as long (launch-bound where a profile of that
// attempt tells kernels apart and half of a step lies between them; never on a CPU), else memory- or compute-bound by
// what most of the floor is. Without a floor the utilisation is told.
//
// Skips are many above a hundredth of the steps, and above twice what the scale's growth makes by itself. Of steps that
// were done again the last attempt counts, and of a training that the job continues its own steps alone. Those of
// calibration are told while nothing was applied, and where a phase took more than a default scale can.
std::vector<Finding> Why(const WhyInput& input);

std::string WhyText(const v1::Job& job, const std::vector<Finding>& findings);
// One JSON object: {"job_id", "findings": [{"what", "because": [...], "advice": [...]}]}.
std::string WhyJson(const v1::Job& job, const std::vector<Finding>& findings);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_WHY_H_
