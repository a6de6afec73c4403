// How a call is refused for now.
#ifndef AMPD_SERVER_SERVICE_TRY_AGAIN_H_
#define AMPD_SERVER_SERVICE_TRY_AGAIN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ampd {

// RESOURCE_EXHAUSTED with google.rpc.RetryInfo: nothing was done, and the call may be made again after `delay`.
absl::Status TryAgain(absl::string_view why, absl::Duration delay);

// `status`, an error, with google.rpc.RetryInfo likewise: what is in the way passes by itself.
absl::Status WithRetryInfo(absl::Status status, absl::Duration delay);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_TRY_AGAIN_H_
