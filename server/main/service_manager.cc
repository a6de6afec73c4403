#include "server/main/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

// A line break would begin another assignment.
std::string OneLine(absl::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return line;
}

}  // namespace

ServiceManager::ServiceManager(std::optional<std::string> socket) : socket_(socket.value_or("")) {}

absl::Status ServiceManager::Starting(absl::string_view status, absl::Duration time) const {
  return Send(
      absl::StrCat("EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(time), "\nSTATUS=", OneLine(status), "\n"));
}

absl::Status ServiceManager::Ready(absl::string_view status) const {
  return Send(absl::StrCat("READY=1\nSTATUS=", OneLine(status), "\n"));
}

absl::Status ServiceManager::Stopping(absl::string_view status, absl::Duration time) const {
  return Send(absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(time),
                           "\nSTATUS=", OneLine(status), "\n"));
}

absl::Status ServiceManager::Send(const std::string& message) const {
  if (socket_.empty()) return absl::OkStatus();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((socket_[0] != '/' && socket_[0] != '@') || socket_.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET: not an address: ", socket_));
  }
  memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  if (!fd.valid() || sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
                            reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return absl::Status(absl::ErrnoToStatusCode(errno), absl::StrCat("NOTIFY_SOCKET ", socket_, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace ampd
