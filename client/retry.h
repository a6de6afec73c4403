// What may be tried again, and when.
#ifndef AMPD_CLIENT_RETRY_H_
#define AMPD_CLIENT_RETRY_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ampd::client {

// Whether a call that ended so may succeed when it is repeated: the server was away or had no room,
// or the answer was lost.
bool IsTransient(const absl::Status& status);

// How long to wait before a call is made again that the server had no room for (google.rpc.RetryInfo in the status):
// what it asks for, and up to half as much more at random, so that clients come back apart. Empty for other errors.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// Makes `call` until the server has room for it. Its last status, also where another try would begin after `deadline`
// or `sleep` returns false. Such a call has done nothing, so any may be repeated.
absl::Status UntilAdmitted(absl::Time deadline, const std::function<bool(absl::Duration)>& sleep,
                           const std::function<absl::Status()>& call);

// Delays that double from `first` up to `longest`.
class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration longest) : first_(first), longest_(longest), next_(first) {}

  absl::Duration Next();
  void Reset() { next_ = first_; }

 private:
  absl::Duration first_;
  absl::Duration longest_;
  absl::Duration next_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_RETRY_H_
