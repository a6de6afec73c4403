#include "client/exit_code.h"

namespace ampd::client {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitSucceeded;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitNotAuthorised;
    default:
      return kExitFailed;
  }
}

int ExitCodeOf(v1::Job::State state) {
  switch (state) {
    case v1::Job::SUCCEEDED:
      return kExitSucceeded;
    case v1::Job::CANCELLED:
      return kExitCancelled;
    default:
      return kExitFailed;
  }
}

bool IsTerminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

}  // namespace ampd::client
