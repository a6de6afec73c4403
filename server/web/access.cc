#include "server/web/access.h"

#include <arpa/inet.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/config/address.h"

namespace ampd {
namespace {

constexpr size_t kMaxSecretBytes = 200;

// What only this machine is called.
bool IsLoopbackName(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return false;
  return Address{std::string(host)}.IsLoopback();
}

// An address, or a name without a dot, which no public name server has: one that a site had rebound is neither.
bool IsPrivateName(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || absl::StartsWith(host, "[") ||
         (!host.empty() && !absl::StrContains(host, '.'));
}

// Whether the page that makes the request was served by the host that it goes to.
bool IsSameOrigin(const std::string& origin, const HttpRequest& request) {
  const std::string host = request.Header("Host").value_or("");
  absl::string_view rest = origin;
  // What came by TLS is of no page that did not: anybody on the way can serve one under the same name.
  const bool has_scheme =
      (!request.is_tls && absl::ConsumePrefix(&rest, "http://")) || absl::ConsumePrefix(&rest, "https://");
  if (!has_scheme) return false;
  return !host.empty() && absl::EqualsIgnoreCase(rest, host);
}

absl::Status CheckSite(const HttpRequest& request) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const std::optional<std::string> site = request.Header("Sec-Fetch-Site");
  const bool is_link = reads && request.Header("Sec-Fetch-Mode").value_or("") == "navigate";
  if (site && *site != "same-origin" && *site != "none" && !is_link) {
    return absl::PermissionDeniedError(absl::StrCat("the request comes from another site (Sec-Fetch-Site)"));
  }
  const std::optional<std::string> origin = request.Header("Origin");
  if (origin && !IsSameOrigin(*origin, request)) {
    return absl::PermissionDeniedError("the request comes from another site (Origin)");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsSecretText(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxSecretBytes &&
         absl::c_all_of(text, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

absl::StatusOr<std::string> TokenIn(absl::string_view body) {
  google::protobuf::Struct fields;
  const std::string text(body);
  if (google::protobuf::util::JsonStringToMessage(text, &fields).ok() && fields.fields_size() == 1) {
    const auto token = fields.fields().find("token");
    if (token != fields.fields().end() && IsSecretText(token->second.string_value())) {
      return token->second.string_value();
    }
  }
  return absl::InvalidArgumentError("the body is not {\"token\": \"...\"}, with a token's secret");
}

HostName HostOf(const HttpRequest& request) {
  const std::string text = request.Header("Host").value_or("");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || absl::EndsWith(text, "]")) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string SessionCookie(const HttpRequest& request) {
  const std::string port = HostOf(request).port;
  const bool is_port = !port.empty() && port.size() <= 5 && absl::c_all_of(port, absl::ascii_isdigit);
  return is_port ? absl::StrCat("ampd_session_", port) : "ampd_session";
}

absl::Status CheckOrigin(const HttpRequest& request, const WebPlace& place) {
  if (!place.is_loopback && !place.insecure && !(place.tls && place.tokens)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "this port is reachable from other machines, ", place.tls ? "without tokens" : "in plain text",
        ": the API needs tls.http and auth.tokens (--http-tls, --auth), http on 127.0.0.1, or insecure: true "
        "(--insecure)"));
  }
  if (place.certificates && !place.tls && !place.tokens) {
    return absl::PermissionDeniedError(
        "clients of this server must show a certificate (tls.client_ca), which this port cannot ask for: the API needs "
        "auth.tokens (--auth)");
  }
  if (place.is_loopback && !place.tokens && !IsLoopbackName(HostOf(request).host)) {
    return absl::PermissionDeniedError(
        "without tokens the API is there for localhost and loopback addresses alone (Host)");
  }
  if (!place.is_loopback && !place.tokens && !IsPrivateName(HostOf(request).host)) {
    return absl::PermissionDeniedError(
        "without tokens the API is there for addresses and names without a dot alone (Host): ask by one, or switch "
        "tokens on");
  }
  return CheckSite(request);
}

absl::StatusOr<std::optional<std::string>> BearerOf(const HttpRequest& request) {
  std::optional<std::string> secret;
  for (const auto& [name, value] : request.headers) {
    if (!absl::EqualsIgnoreCase(name, "Authorization")) continue;
    if (secret) return absl::UnauthenticatedError("several authorizations in one request");
    constexpr absl::string_view kScheme = "bearer ";
    if (!absl::StartsWithIgnoreCase(value, kScheme) || !IsSecretText(absl::string_view(value).substr(kScheme.size()))) {
      return absl::UnauthenticatedError("the authorization is not \"Bearer\" and a token");
    }
    secret = value.substr(kScheme.size());
  }
  return secret;
}

std::optional<std::string> CookieOf(const HttpRequest& request, absl::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (!absl::EqualsIgnoreCase(key, "Cookie")) continue;
    for (const absl::string_view part : absl::StrSplit(value, ';')) {
      absl::string_view cookie = absl::StripAsciiWhitespace(part);
      if (absl::ConsumePrefix(&cookie, name) && absl::ConsumePrefix(&cookie, "=")) return std::string(cookie);
    }
  }
  return std::nullopt;
}

}  // namespace ampd
