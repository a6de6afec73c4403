// What the verbs that explain jobs share.
#ifndef AMPD_CLIENT_COMMANDS_EXPLAIN_H_
#define AMPD_CLIENT_COMMANDS_EXPLAIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/analysis/diff.h"
#include "client/connection.h"

namespace ampd::client {

// The job and its events so far.
absl::StatusOr<JobAndEvents> FetchJob(Connection* connection, const std::string& job_id);

// Now, Unix seconds.
double UnixNow();

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_EXPLAIN_H_
