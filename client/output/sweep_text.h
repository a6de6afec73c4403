// A sweep for people.
#ifndef AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_
#define AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_

#include <string>

#include "ampd/v1/training_service.pb.h"

namespace ampd::client {

// A table of the jobs: what each sets, its state and newest figures. Columns of values are headed by the last name of
// their path where that tells them apart.
std::string SweepText(const v1::JobSweep& sweep, bool color = false);

// "6 jobs: 1 RUNNING, 5 QUEUED".
std::string SweepCounts(const v1::JobSweep& sweep);

// "1 RUNNING, 5 QUEUED".
std::string SweepStates(const v1::SweepSummary& sweep);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_
