#ifndef AMPD_SERVER_FILES_UNIQUE_FD_H_
#define AMPD_SERVER_FILES_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace ampd {

// A file descriptor owned by one object; closed with it. -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_UNIQUE_FD_H_
