// Where a job's own steps begin.
#ifndef AMPD_PROTO_SPEC_START_STEP_H_
#define AMPD_PROTO_SPEC_START_STEP_H_

#include <cstdint>

#include "ampd/v1/job.pb.h"

namespace ampd {

// Steps of the training that came before the job's first: those of the checkpoint that a resolved `spec` continues, by
// its name; 0 for a job that continues none.
int64_t StepsBefore(const v1::JobSpec& spec);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_START_STEP_H_
