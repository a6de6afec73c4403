#include "server/main/drain_requests.h"

#include <sys/eventfd.h>

#include <utility>

namespace ampd {

DrainRequests::DrainRequests() : asked_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void DrainRequests::Ask(DrainRequest request) {
  {
    const MutexLock lock(&mutex_);
    asked_.push_back(std::move(request));
  }
  eventfd_write(asked_fd_.get(), 1);
}

std::vector<DrainRequest> DrainRequests::Take() {
  // Before the requests: one that comes in between is told again, and not missed.
  eventfd_t ignored;
  eventfd_read(asked_fd_.get(), &ignored);
  const MutexLock lock(&mutex_);
  return std::exchange(asked_, {});
}

}  // namespace ampd
