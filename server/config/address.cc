#include "server/config/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ampd {

std::string Address::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool Address::IsLoopback() const {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return absl::EqualsIgnoreCase(host, "localhost");
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto wrong = [&text] {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not HOST:PORT, such as 127.0.0.1:7070"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return wrong();
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && host.find_first_of(":[]") != absl::string_view::npos)) return wrong();
  const bool graphic = std::all_of(host.begin(), host.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  const bool digits = std::all_of(port_text.begin(), port_text.end(), [](char c) { return c >= '0' && c <= '9'; });
  Address address{std::string(host), 0};
  if (!graphic || !digits || !absl::SimpleAtoi(port_text, &address.port) || address.port > 65535) return wrong();
  return address;
}

}  // namespace ampd
