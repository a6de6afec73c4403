// A job's figures, folded from its events.
#ifndef AMPD_SERVER_JOBS_SUMMARY_H_
#define AMPD_SERVER_JOBS_SUMMARY_H_

#include <cstddef>
#include <map>
#include <string>

#include "server/store/records.h"

namespace ampd {

// Of so many of a job's checkpoints it is known how the job stood there: training goes back to the newest of them, or
// where that is damaged to one before.
inline constexpr size_t kCheckpointsKnown = 4;

// Brings `record`'s summary and last_reported_step up to `event`, and adds what the event contributes to the fleet's
// counters (names in server/metrics/metrics.h) to `deltas`. Steps repeated after a `rewound` count again there: they
// are work done. The summary loses then what belongs to the steps that were undone, as far as a checkpoint's summary is
// known (at_checkpoints, brought up as well); its rates, the loss scale and the newest checkpoint's name stay. A loss
// that is not finite does not become the summary's loss. A checkpoint that tells where the training stands brings up
// what had no reports; one that was written before adds nothing to the bytes written.
void FoldEvent(const v1::JobEvent& event, JobRecord* record, std::map<std::string, double>* deltas);

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_SUMMARY_H_
