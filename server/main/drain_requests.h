// Asks the main thread to drain the server: what calls and notices do in place of SIGTERM.
#ifndef AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_
#define AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_

#include <optional>
#include <string>
#include <vector>

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

  void Ask(DrainRequest request);
  // Readable while there are some that were not taken. Not to be read.
  int fd() const { return asked_fd_.get(); }
  // Those asked for since the last call, in that order.
  std::vector<DrainRequest> Take();

 private:
  const UniqueFd asked_fd_;
  Mutex mutex_;
  std::vector<DrainRequest> asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_DRAIN_REQUESTS_H_
