// Signing in and out.
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/text.h"
#include "server/web/api.h"

namespace ampd {
namespace {

constexpr char kAttributes[] = "; Path=/api/; HttpOnly; SameSite=Strict";

// Where there is TLS, here or at a proxy before this port, the browser is to send it over TLS alone.
const char* SecureOf(const HttpRequest& request) {
  if (request.is_tls) return "; Secure";
  return absl::EqualsIgnoreCase(request.Header("X-Forwarded-Proto").value_or(""), "https") ? "; Secure" : "";
}

}  // namespace

HttpResponse JsonApi::SessionOf(absl::string_view secret) const {
  const bool tokens = options_.gate->asks_for_tokens();
  absl::StatusOr<Caller> caller = absl::UnauthenticatedError("nobody");
  if (!tokens || !secret.empty()) caller = options_.gate->Identify(secret);
  const v1::Role role = caller.ok() ? caller->role : v1::ROLE_UNSPECIFIED;
  return JsonResponse(absl::StrCat("{\"tokens\": ", tokens ? "true" : "false",
                                   ", \"signed_in\": ", caller.ok() ? "true" : "false",
                                   ", \"user\": ", QuoteJson(caller.ok() ? caller->user : ""),
                                   ", \"role\": ", QuoteJson(caller.ok() ? v1::Role_Name(role) : ""),
                                   ", \"may_change\": ", role >= v1::SUBMITTER ? "true" : "false", "}\n"));
}

absl::StatusOr<HttpResponse> JsonApi::GetSession(Call& call) { return SessionOf(call.credentials.secret); }

absl::StatusOr<HttpResponse> JsonApi::OpenSession(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const std::string secret, TokenIn(call.body));
  if (!options_.gate->asks_for_tokens()) {
    return absl::FailedPreconditionError("this server asks for no tokens (ampd --auth, auth.tokens)");
  }
  AMPD_ASSIGN_OR_RETURN(const Caller caller, options_.gate->Identify(secret));
  const HttpRequest& request = call.exchange.request();
  const std::string name = SessionCookie(request);
  if (const auto before = CookieOf(request, name)) sessions_.Close(*before);
  HttpResponse response = SessionOf(secret);
  response.headers.emplace_back(
      "Set-Cookie", absl::StrCat(name, "=", sessions_.Open(secret, caller.token_id), kAttributes, SecureOf(request)));
  return response;
}

absl::StatusOr<HttpResponse> JsonApi::CloseSession(Call& call) {
  const HttpRequest& request = call.exchange.request();
  const std::string name = SessionCookie(request);
  if (const auto cookie = CookieOf(request, name)) sessions_.Close(*cookie);
  HttpResponse response = SessionOf("");
  response.headers.emplace_back("Set-Cookie", absl::StrCat(name, "=; Max-Age=0", kAttributes, SecureOf(request)));
  return response;
}

}  // namespace ampd
