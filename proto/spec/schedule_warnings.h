// Learning-rate schedules that a job does not take as far as they go.
#ifndef AMPD_PROTO_SPEC_SCHEDULE_WARNINGS_H_
#define AMPD_PROTO_SPEC_SCHEDULE_WARNINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ampd/v1/job.pb.h"

namespace ampd {

// As ModelPlan.warnings: warm-ups, milestones and periods that lie beyond the `steps` that a job of the resolved `spec`
// takes. None of a job with `bench`.
std::vector<std::string> ScheduleWarnings(const v1::JobSpec& spec, int64_t steps);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_SCHEDULE_WARNINGS_H_
