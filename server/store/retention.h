// What becomes of old events: step reports are merged into coarser ones.
#ifndef AMPD_SERVER_STORE_RETENTION_H_
#define AMPD_SERVER_STORE_RETENTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/event.pb.h"
#include "server/store/database.h"

namespace ampd {

// Whether `second` can be added to `first`: step reports of one attempt that follow each other without a gap, in their
// sequence numbers and in their steps.
bool CanMerge(const v1::JobEvent& first, const v1::JobEvent& second);

// One event for both, which covers the sequence numbers and the steps of both. Means are weighted by steps, rates by
// the time the steps took, where that is known; figures of a moment are those of `second`.
v1::JobEvent MergeStepReports(const v1::JobEvent& first, const v1::JobEvent& second);

struct MergePass {
  // Where the next call goes on; 0: the pass has ended.
  uint64_t after_sequence = 0;
  // Events that went.
  int64_t merged = 0;
};

// Merges neighbours two by two among the job's events after `after_sequence`, but for its newest `keep`; looks at
// `limit` events at most (>= 2). To be called within a transaction. NOT_FOUND for an unknown job; the database's
// errors.
absl::StatusOr<MergePass> MergeOldReports(Database& database, absl::string_view job_id, uint64_t after_sequence,
                                          int64_t keep, int limit);

// What MergeOldReports would do, without doing it. Needs no transaction.
absl::StatusOr<MergePass> LookForOldReports(const Database& database, absl::string_view job_id, uint64_t after_sequence,
                                            int64_t keep, int limit);

// Events that the store holds of the job.
absl::StatusOr<int64_t> CountEvents(const Database& database, absl::string_view job_id);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_RETENTION_H_
