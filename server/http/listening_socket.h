// The socket that the HTTP port listens on, and the addresses of those who come.
#ifndef AMPD_SERVER_HTTP_LISTENING_SOCKET_H_
#define AMPD_SERVER_HTTP_LISTENING_SOCKET_H_

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/address.h"
#include "server/files/unique_fd.h"

namespace ampd {

struct ListeningSocket {
  // Does not block.
  UniqueFd socket;
  // HOST:PORT as asked for, with the port really used.
  std::string address;
};

// `address`: HOST:PORT or [IPV6]:PORT; port 0 picks a free one, and of a name's addresses an IPv4 one comes first.
// INVALID_ARGUMENT for what is no address; UNAVAILABLE, with the address, when it cannot be listened on.
absl::StatusOr<ListeningSocket> Listen(const std::string& address);

// All that a socket may listen at for `address`, as the resolver has them. UNAVAILABLE, with its words, where it knows
// none.
absl::StatusOr<std::vector<sockaddr_storage>> Resolve(const Address& address);

// That the socket is bound to; 0: none is known.
int PortOf(const UniqueFd& socket);

struct PeerName {
  // As gRPC writes it: "ipv4:10.0.0.7:51334", "ipv6:[::1]:51334".
  std::string peer;
  // Whom to count it with: the address; of IPv6 its first 64 bits, of which one host has all that follow.
  std::string client;
};

PeerName NameOfPeer(const sockaddr_storage& from);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_LISTENING_SOCKET_H_
