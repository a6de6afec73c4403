// Asks the main thread to drain the server: what calls and notices do in place of SIGTERM.
#ifndef AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_
#define AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/files/unique_fd.h"

namespace ampd {

struct DrainRequest {
  // Until the process has ended; default: what it has after SIGTERM.
  std::optional<absl::Duration> timeout;
  // For people; may be empty.
  std::string reason;
};

// Thread-safe.
class DrainRequests {
 public:
  DrainRequests();

  // The first one counts; the server drains but once.
  void Ask(DrainRequest request);
  // Readable once somebody asked.
  int fd() const { return asked_fd_.get(); }
  // What was asked for; empty before that.
  DrainRequest Get() const;

 private:
  const UniqueFd asked_fd_;
  mutable Mutex mutex_;
  std::optional<DrainRequest> first_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_
