// The HTTP listener: GET (and HEAD) /metrics, /healthz and /readyz, and what a router knows; in plain text or by TLS.
//
// A connection is one request and one answer. Threads only answer, and two do handshakes; whatever waits for a client
// is done by another thread for all connections at once (connections.h), within these bounds:
//
//   what                                   its bound
//   a request: first line, headers, body   10 s from the connection's begin; then 408, or nothing for who said nothing
//   its head                               8 KiB and 100 headers; else 431
//   its body                               64 KiB; a longer one is not read, and ReadBody() fails
//   waiting for a thread                   64 requests of a client; for more 503
//   threads                                of one client 3/4 of them
//   an answer that waits for its client    10 s and 1 s for each 64 KiB; of all of them 64 MiB
//   an answer in parts (streams, files)    each part likewise, and 2 s without progress. It holds a thread: those who
//                                          answer so count their streams
//   what comes behind a request            thrown away: 5 s after the answer, or 1 MiB
//   connections                            max_connections, and a quarter of the process's descriptors
//   a TLS handshake                        of the time for a request; two threads do them, for one client one; of those
//   of a
//                                          client that wait, what has begun comes first, then the newest
//
// Beyond the bounds of connections and of waiting answers, the oldest connection that waits for its client goes, of the
// client that has the most of them. A client is an IPv4 address, or the first 64 bits of an IPv6 one. So who asks at
// once is answered, however many others say nothing, also from the same address.
#ifndef AMPD_SERVER_HTTP_HTTP_SERVER_H_
#define AMPD_SERVER_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/connections.h"
#include "server/http/fair_queue.h"
#include "server/http/router.h"
#include "server/http/tls.h"

namespace ampd {

class HttpServer {
 public:
  struct Options {
    // HOST:PORT or [IPV6]:PORT; port 0 picks a free one.
    std::string listen = "127.0.0.1:7071";
    // The body of /metrics.
    std::function<std::string()> metrics;
    // /readyz: OK is 200, an error is 503 with its message.
    std::function<absl::Status()> ready;
    // Told behind the "ok" of /readyz, in words: what is short though the server serves. Empty: nothing. May be empty.
    std::function<std::string()> ready_note;
    // The other paths.
    Router router;
    // Told of each answer, on the server's threads: the pattern of its path, "" where none fits, and the status. May be
    // empty.
    std::function<void(const std::string& route, int status)> listener;
    // As Connections::Options'.
    std::function<void(const char* reason)> on_refused;
    std::function<void()> on_pause;
    // Requests answered at once; more wait.
    int threads = 128;
    // Open at a time.
    int max_connections = 1024;
    // For a whole request.
    std::chrono::milliseconds request_time{10'000};
    // TLS: what the next connection is to use, asked on the thread of all connections. Empty: plain text.
    std::function<std::shared_ptr<const TlsContext>()> tls;
    // Who shows no certificate is answered /healthz and /readyz alone; all else is 403. Needs `tls`, with authorities.
    bool client_certificates = false;
  };

  // The functions are called from the server's threads, several at a time. Start it after blocking SIGTERM and SIGINT.
  // INVALID_ARGUMENT for an address that cannot be read; UNAVAILABLE, with the address, when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Closes all connections, also those that a handler writes to, and waits for the handlers; what else they may wait
  // for is to be ended before.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // HOST:PORT with the port really used.
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(Options options);
  void AddOwnRoutes();
  absl::Status StartConnections(UniqueFd listener);
  // Of each thread.
  void ServeAll(FairQueue* queue, const std::function<void(Connection*)>& serve);
  void Answer(Connection* connection);
  bool LacksCertificate(const HttpRequest& request) const;
  // What is no request, or one too many of its client's. Waits for nothing.
  void Refuse(Connection* connection);

  Options options_;
  std::string address_;
  FairQueue queue_;
  FairQueue handshakes_;
  std::unique_ptr<Connections> connections_;
  std::vector<std::thread> threads_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_HTTP_SERVER_H_
