// Where the values come from that a command line may be completed with.
#ifndef AMPD_CLIENT_COMPLETION_VALUES_H_
#define AMPD_CLIENT_COMPLETION_VALUES_H_

#include <vector>

#include "client/completion/complete.h"

namespace ampd::client {

// The server, which has a second to answer, the contexts, the job file's fields and so on, by the kind of the value;
// nothing for kinds that are not known, and where the server does not answer.
std::vector<Candidate> FindValues(const ValueQuery& query);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMPLETION_VALUES_H_
