// Which requests of the HTTP port the API looks at, and who makes them.
#ifndef AMPD_SERVER_WEB_ACCESS_H_
#define AMPD_SERVER_WEB_ACCESS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/http/exchange.h"

namespace ampd {

// Where the API is served.
struct WebPlace {
  // The port is reached from this machine alone.
  bool is_loopback = true;
  // ServerConfig.insecure.
  bool insecure = false;
  // ServerConfig.tls.http.
  bool tls = false;
  // ServerConfig.auth.tokens.
  bool tokens = false;
  // Clients are to show a certificate (ServerConfig.tls.client_ca). Without `tls` this port cannot ask for it; with it,
  // the port has looked before it asks the API (HttpServer::Options).
  bool certificates = false;
};

// PERMISSION_DENIED, with what to do, where the API is not served (beyond loopback, or where nothing but a certificate
// keeps strangers out), for a host name that a browser was led to believe in (without tokens: on loopback any but this
// machine's own, beyond it any with a dot that is no address), and for requests that pages of other sites make. A link
// to follow is a GET from elsewhere that is let through.
absl::Status CheckOrigin(const HttpRequest& request, const WebPlace& place);

// Whether it may be sent as a header: 1 to 200 printable ASCII characters, no blanks.
bool IsSecretText(absl::string_view text);

// The secret in {"token": "..."}, one that IsSecretText(). INVALID_ARGUMENT for any other body; what the body says is a
// secret, or nothing: no error repeats any of it. Recurses as the body does (server/http/large_stack.h).
absl::StatusOr<std::string> TokenIn(absl::string_view body);

// The secret that the request sends by Authorization; nullopt: none. UNAUTHENTICATED for several, and for what is not
// "Bearer" and a secret.
absl::StatusOr<std::optional<std::string>> BearerOf(const HttpRequest& request);

// The value of the cookie `name`; nullopt: none.
std::optional<std::string> CookieOf(const HttpRequest& request, absl::string_view name);

// "localhost:7071" as host and port; the port may be empty. Brackets stay.
struct HostName {
  std::string host;
  std::string port;
};
HostName HostOf(const HttpRequest& request);

// The name of the session's cookie. A browser keeps cookies by host, whatever the port: daemons on several ports of one
// host need several names.
std::string SessionCookie(const HttpRequest& request);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_ACCESS_H_
