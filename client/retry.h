// What may be tried again, and when.
#ifndef AMPD_CLIENT_RETRY_H_
#define AMPD_CLIENT_RETRY_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ampd::client {

// Whether a call that ended so may succeed when it is repeated: the server was away, or the answer was lost.
bool IsTransient(const absl::Status& status);

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
