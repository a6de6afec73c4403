// How two jobs differ. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_DIFF_H_
#define AMPD_CLIENT_ANALYSIS_DIFF_H_

#include <string>
#include <utility>
#include <vector>

#include "ampd/v1/job.pb.h"
#include "client/analysis/events.h"
#include "proto/spec/differences.h"

namespace ampd::client {

// Of the resolved specs; labels count, the name of the job, which is for people alone, does not. At most 200; the rest
// is one entry "...".
std::vector<FieldDifference> SpecDifferences(const v1::JobSpec& a, const v1::JobSpec& b);

struct JobAndEvents {
  v1::Job job;
  Events events;
};

// Specs field by field; devices and figures; what their newest attempts computed with, and whether equal bits can be
// expected; and the losses of both in up to ten reports of the same steps, by phase. `cut`: values are cut at 36
// columns, as a terminal wants them.
std::string DiffText(const JobAndEvents& a, const JobAndEvents& b, bool cut = false);
// One JSON object: {"a", "b", "fields": [{"field", "a", "b"}], "environment": [{"part", "a", "b"}], "deterministic":
// bool, "deterministic_reason", "curves": {phase: [[step, a, b], ...]}}, every report of the same steps by the last of
// them; a loss that is no number is null.
std::string DiffJson(const JobAndEvents& a, const JobAndEvents& b);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_DIFF_H_
