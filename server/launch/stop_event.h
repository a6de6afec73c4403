// Says to those who wait for a process of the daemon's that it is to be ended.
#ifndef AMPD_SERVER_LAUNCH_STOP_EVENT_H_
#define AMPD_SERVER_LAUNCH_STOP_EVENT_H_

#include <poll.h>
#include <sys/eventfd.h>

#include "server/files/unique_fd.h"

namespace ampd {

// Thread-safe. Without descriptors to be had it is never set, and who waits does so to the end.
class StopEvent {
 public:
  StopEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // For good.
  void Set() { eventfd_write(fd_.get(), 1); }

  bool is_set() const {
    pollfd fd{fd_.get(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }

  // Readable once it is set; -1 for poll() to pass over where there is none. Not to be read.
  int fd() const { return fd_.get(); }

 private:
  const UniqueFd fd_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_STOP_EVENT_H_
