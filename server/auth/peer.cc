#include "server/auth/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace ampd {
namespace {

std::string TextOf(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

// Empty where it is none.
std::string NetworkOf(std::string host) {
  // A link's name, "fe80::1%eth0".
  host.resize(std::min(host.size(), host.find('%')));
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) return absl::StrCat("ipv4:", TextOf(AF_INET, &address.s6_addr[12]));
  if (IN6_IS_ADDR_LOOPBACK(&address)) return "ipv6:::1";
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), uint8_t{0});
  return absl::StrCat("ipv6:", TextOf(AF_INET6, &address), "/64");
}

}  // namespace

std::string PeerAddress(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return "unix:";
  const absl::string_view host = peer.substr(0, peer.rfind(':'));
  if (absl::StartsWith(peer, "ipv4:") && host.size() > 4) return std::string(host);
  std::string plain = absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}, {"%25", "%"}});
  if (!absl::StartsWith(plain, "ipv6:")) return std::string(peer);
  const std::string network = NetworkOf(plain.substr(5));
  return network.empty() ? std::string(peer) : network;
}

}  // namespace ampd
