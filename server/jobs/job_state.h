// The states of a job and the one table of legal edges between them.
#ifndef AMPD_SERVER_JOBS_JOB_STATE_H_
#define AMPD_SERVER_JOBS_JOB_STATE_H_

#include "ampd/v1/job.pb.h"

namespace ampd {

// True when a job in `from` may enter `to`. Never for from == to and unspecified states. Of the
// terminal states FAILED and CANCELLED may be left, for QUEUED.
bool IsLegalTransition(v1::Job::State from, v1::Job::State to);

// SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(v1::Job::State state);

// True when a worker may exist and a device is held: STARTING, RUNNING, PREEMPTING, RECOVERING, CANCELLING.
bool HoldsDevice(v1::Job::State state);

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_JOB_STATE_H_
