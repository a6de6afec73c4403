// ampctl's exit codes.
#ifndef AMPD_CLIENT_EXIT_CODE_H_
#define AMPD_CLIENT_EXIT_CODE_H_

#include "absl/status/status.h"
#include "ampd/v1/job.pb.h"

namespace ampd::client {

inline constexpr int kExitSucceeded = 0;
// The job failed, or what was asked for could not be done.
inline constexpr int kExitFailed = 1;
// Wrong usage, a bad spec, an unknown job.
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCancelled = 3;
inline constexpr int kExitUnreachable = 4;
inline constexpr int kExitNotAuthorised = 5;
// `wait --timeout` ran out, as timeout(1) has it.
inline constexpr int kExitTimeout = 124;
// Ctrl-C while watching.
inline constexpr int kExitInterrupted = 130;

int ExitCodeOf(const absl::Status& status);

// Of a terminal state.
int ExitCodeOf(v1::Job::State state);

bool IsTerminal(v1::Job::State state);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_EXIT_CODE_H_
