#include "server/launch/socket_address.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ampd {

absl::StatusOr<SocketAddress> SocketAddress::Open(const std::string& directory, const std::string& name) {
  UniqueFd fd(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::Status(absl::ErrnoToStatusCode(errno), absl::StrCat("cannot open ", directory, ": ", strerror(errno)));
  }
  return SocketAddress(std::move(fd), name);
}

std::string SocketAddress::uri() const { return absl::StrCat("unix:", path()); }

std::string SocketAddress::path() const { return absl::StrCat("/proc/self/fd/", directory_.get(), "/", name_); }

}  // namespace ampd
