#include "server/http/listening_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

absl::StatusOr<UniqueFd> Bind(const sockaddr_storage& to) {
  UniqueFd socket(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const socklen_t size = to.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const int on = 1;
  if (!socket.valid() || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&to), size) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  return socket;
}

std::string Text(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

}  // namespace

absl::StatusOr<std::vector<sockaddr_storage>> Resolve(const Address& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  std::vector<sockaddr_storage> found;
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    memcpy(&found.emplace_back(), next->ai_addr, next->ai_addrlen);
  }
  freeaddrinfo(list);
  return found;
}

int PortOf(const UniqueFd& socket) {
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return 0;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

absl::StatusOr<ListeningSocket> Listen(const std::string& address) {
  absl::StatusOr<Address> asked = ParseAddress(address);
  if (!asked.ok()) return Annotate(asked.status(), "http");
  auto found = Resolve(*asked);
  absl::Status error = found.status();
  if (found.ok()) {
    std::stable_partition(found->begin(), found->end(), [](const auto& a) { return a.ss_family == AF_INET; });
    for (const sockaddr_storage& to : *found) {
      absl::StatusOr<UniqueFd> socket = Bind(to);
      if (socket.ok()) {
        asked->port = PortOf(*socket);
        return ListeningSocket{*std::move(socket), asked->ToString()};
      }
      error = socket.status();
    }
  }
  return absl::UnavailableError(absl::StrCat("http: cannot listen on ", address, ": ", error.message()));
}

PeerName NameOfPeer(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(from);
    const std::string text = Text(AF_INET, &ipv4.sin_addr);
    return {absl::StrCat("ipv4:", text, ":", ntohs(ipv4.sin_port)), text};
  }
  if (from.ss_family != AF_INET6) return {"unknown", "unknown"};
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(from);
  const in6_addr& address = ipv6.sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    const std::string text = Text(AF_INET, address.s6_addr + 12);
    return {absl::StrCat("ipv4:", text, ":", ntohs(ipv6.sin6_port)), text};
  }
  in6_addr network = address;
  std::fill(network.s6_addr + 8, network.s6_addr + 16, 0);
  return {absl::StrCat("ipv6:[", Text(AF_INET6, &address), "]:", ntohs(ipv6.sin6_port)), Text(AF_INET6, &network)};
}

}  // namespace ampd
