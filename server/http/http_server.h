// The HTTP listener: GET (and HEAD) /metrics, /healthz and /readyz, and what a router knows.
#ifndef AMPD_SERVER_HTTP_HTTP_SERVER_H_
#define AMPD_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/router.h"

struct mg_connection;
struct mg_context;

namespace ampd {

class HttpServer {
 public:
  struct Options {
    // HOST:PORT; port 0 picks a free one. [IPV6]:PORT where civetweb was built with IPv6 (Debian's was not).
    std::string listen = "127.0.0.1:7071";
    // The body of /metrics.
    std::function<std::string()> metrics;
    // /readyz: OK is 200, an error is 503 with its message.
    std::function<absl::Status()> ready;
    // The other paths.
    Router router;
    // Told of each answer, on the server's threads: the pattern of its path, "" where none fits, and the status. May be
    // empty.
    std::function<void(const std::string& route, int status)> listener;
    // Connections served at once; more wait. A connection that says nothing takes one until it is closed, after 2 to 4
    // s; an answer takes it until it is whole.
    int threads = 128;
  };

  // The functions are called from the server's threads, several at a time. Start it after blocking SIGTERM and SIGINT.
  // INVALID_ARGUMENT for an address that cannot be read; UNAVAILABLE, with the address, when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Waits for running requests; streams are to be ended before.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // HOST:PORT with the port really used.
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(Options options);
  static int HandleRequest(mg_connection* connection, void* self);
  void AddOwnRoutes();

  Options options_;
  mg_context* context_ = nullptr;
  std::string address_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_HTTP_SERVER_H_
