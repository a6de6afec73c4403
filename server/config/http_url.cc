#include "server/config/http_url.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/config/address.h"

namespace ampd {
namespace {

constexpr char kScheme[] = "http://";
constexpr size_t kMaxBytes = 2000;

bool IsIpAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

std::string HttpUrl::ToString() const { return absl::StrCat(kScheme, Address{host, port}.ToString(), path); }

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  const absl::string_view shown = text.substr(0, 100);
  if (!absl::StartsWith(text, kScheme) || text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("\"", shown, "\" is not http://ADDRESS[:PORT]/PATH"));
  }
  const absl::string_view rest = text.substr(sizeof(kScheme) - 1);
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string authority(rest.substr(0, slash));
  // A colon after the last bracket, if any, is a port's.
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  if (!has_port) absl::StrAppend(&authority, ":80");
  AMPD_ASSIGN_OR_RETURN(const Address address, ParseAddress(authority));
  if (!IsIpAddress(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", shown, "\": its host must be an IP address, names are not looked up"));
  }
  HttpUrl url{address.host, address.port, std::string(rest.substr(slash))};
  if (url.path.empty()) url.path.push_back('/');
  if (!std::all_of(url.path.begin(), url.path.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return absl::InvalidArgumentError("the path of a URL must be printable ASCII without blanks");
  }
  if (url.port == 0) return absl::InvalidArgumentError(absl::StrCat("\"", shown, "\": 0 is no port"));
  return url;
}

}  // namespace ampd
