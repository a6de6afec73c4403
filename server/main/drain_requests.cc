#include "server/main/drain_requests.h"

#include <sys/eventfd.h>

#include <utility>

namespace ampd {

DrainRequests::DrainRequests() : asked_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void DrainRequests::Ask(DrainRequest request) {
  {
    const MutexLock lock(&mutex_);
    if (first_) return;
    first_ = std::move(request);
  }
  eventfd_write(asked_fd_.get(), 1);
}

DrainRequest DrainRequests::Get() const {
  const MutexLock lock(&mutex_);
  return first_.value_or(DrainRequest());
}

}  // namespace ampd
