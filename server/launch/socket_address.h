// Unix sockets of a directory, whatever the length and the characters of its path.
#ifndef AMPD_SERVER_LAUNCH_SOCKET_ADDRESS_H_
#define AMPD_SERVER_LAUNCH_SOCKET_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/files/unique_fd.h"

namespace ampd {

// A socket address has room for 108 bytes, and gRPC reads the path in it as a URI. Both are avoided by naming the
// directory through a descriptor: /proc/self/fd/N/NAME. Valid while the object lives.
class SocketAddress {
 public:
  // NOT_FOUND and the like when `directory` cannot be opened.
  static absl::StatusOr<SocketAddress> Open(const std::string& directory, const std::string& name);

  // For gRPC: "unix:/proc/self/fd/N/NAME".
  std::string uri() const;
  // "/proc/self/fd/N/NAME".
  std::string path() const;

 private:
  SocketAddress(UniqueFd directory, std::string name) : directory_(std::move(directory)), name_(std::move(name)) {}

  UniqueFd directory_;
  std::string name_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_SOCKET_ADDRESS_H_
