// Jobs without what a list does not show.
#ifndef AMPD_SERVER_WEB_VIEWS_H_
#define AMPD_SERVER_WEB_VIEWS_H_

#include <cstddef>

#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"

namespace ampd {

// Without the plan, and of the spec without all but name, labels, precision.mode, train, resources and the names of
// phases.
v1::Job SummaryView(v1::Job job);

// How many of the page's jobs, from its first on, end within so many bytes of JSON; one at least, if there is one.
int JobsWithin(const v1::ListJobsResponse& page, size_t json_bytes);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_VIEWS_H_
