// What is odd about a job that may be submitted all the same.
#ifndef AMPD_SERVER_SERVICE_SUBMIT_WARNINGS_H_
#define AMPD_SERVER_SERVICE_SUBMIT_WARNINGS_H_

#include <string>
#include <vector>

#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/worker_link.pb.h"

namespace ampd {

// As ModelPlan.warnings, of a job of the resolved `spec` that was planned without errors:
// - of data and weights that could not be read;
// - of a plan that takes more memory than each of `devices` that could run it has;
// - ScheduleWarnings(), where train.steps says how many steps it takes; else the first report does.
std::vector<std::string> SubmitWarnings(const v1::JobSpec& spec, const v1::PlanResponse& planned,
                                        const std::vector<v1::Device>& devices);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_SUBMIT_WARNINGS_H_
