#include "server/launch/exit_watcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

absl::Status Register(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("epoll_ctl: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExitWatcher>> ExitWatcher::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !stop.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot watch processes: ", strerror(errno)));
  }
  if (absl::Status status = Register(epoll.get(), stop.get()); !status.ok()) return status;
  std::unique_ptr<ExitWatcher> watcher(new ExitWatcher(std::move(epoll), std::move(stop)));
  watcher->thread_ = std::thread([w = watcher.get()] { w->Loop(); });
  return watcher;
}

ExitWatcher::~ExitWatcher() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::Status ExitWatcher::Watch(ProcessHandle process, Callback on_exit) {
  const MutexLock lock(&mutex_);
  const int pidfd = process.pidfd();
  if (absl::Status status = Register(epoll_.get(), pidfd); !status.ok()) return status;
  watched_.emplace(pidfd, Watched{std::move(process), std::move(on_exit)});
  return absl::OkStatus();
}

absl::Status ExitWatcher::Signal(const ProcessIdentity& identity, int signal) {
  const MutexLock lock(&mutex_);
  for (const auto& [pidfd, watched] : watched_) {
    if (watched.process.identity() == identity) return watched.process.Signal(signal);
  }
  return absl::NotFoundError(absl::StrCat("process ", identity.pid, " is not watched"));
}

void ExitWatcher::Loop() {
  while (true) {
    epoll_event event{};
    const int ready = epoll_wait(epoll_.get(), &event, 1, -1);
    if (ready <= 0) continue;
    if (event.data.fd == stop_.get()) return;
    Collect(event.data.fd);
  }
}

void ExitWatcher::Collect(int pidfd) {
  MutexLock lock(&mutex_);
  auto found = watched_.extract(pidfd);
  lock.Unlock();
  if (found.empty()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pidfd, nullptr);
  const ProcessExit exit = found.mapped().process.Reap();
  found.mapped().on_exit(exit);
}

}  // namespace ampd
