// Jobs without what a list does not show.
#ifndef AMPD_SERVER_WEB_VIEWS_H_
#define AMPD_SERVER_WEB_VIEWS_H_

#include "ampd/v1/job.pb.h"

namespace ampd {

// Without the plan, and of the spec without all but name, labels, precision.mode, train, resources and the names of
// phases.
v1::Job SummaryView(v1::Job job);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_VIEWS_H_
