// The sockets that gRPC's servers are reached at, and who is let in. gRPC's own listener ends for good with the first
// connection for which there is no descriptor, and bounds nothing.
#ifndef AMPD_SERVER_MAIN_GRPC_LISTENER_H_
#define AMPD_SERVER_MAIN_GRPC_LISTENER_H_

#include <grpcpp/server_builder.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/config/address.h"
#include "server/files/unique_fd.h"
#include "server/main/open_connections.h"

namespace ampd {

// Of the port: half of the process's descriptors, 8,192 at most; of them a client may have a quarter (up to
// half where that is less than 1,100), and a loopback address three. The HTTP port has a quarter of the descriptors.
ConnectionBounds BoundsOfPort();
// Of the workers' socket: an eighth, 1,024 at most.
ConnectionBounds BoundsOfWorkers();

// Lets in who comes, on a thread of its own: beyond the bounds a connection is closed at once, and without descriptors
// new ones wait until there are some. What gRPC sets on the sockets that it listens on is set here.
class GrpcListener {
 public:
  struct Options {
    // As messages call it.
    std::string name;
    ConnectionBounds bounds;
    // TCP_USER_TIMEOUT: after it a connection ends whose client takes nothing; 0: the system's. As gRPC derives it from
    // the keepalive's.
    std::chrono::milliseconds user_timeout{0};
    // A line at most every minute of each kind. Called on the thread.
    std::function<void(const std::string&)> log;
    // Told of each connection that is closed since there are too many, of its client ("client") or of all ("all"), and
    // whenever new ones begin to wait. May be empty. Called on the thread.
    std::function<void(const char* reason)> on_refused;
    std::function<void()> on_pause;
  };
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // On all addresses of the host, as gRPC does: 0.0.0.0 and [::] are both all of IPv4 and IPv6. Port 0 picks a free
  // one. UNAVAILABLE when it can listen on none.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> OnPort(const Address& address, Options options);
  // On a Unix socket, made in place of one that is there; it is removed at the end.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> OnSocket(const std::string& path, Options options);
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  // The one really used; 0 on a Unix socket.
  int port() const { return port_; }

  // Until then who comes waits. The acceptor's server has been started. Call it once.
  absl::Status Start(std::unique_ptr<Acceptor> acceptor);
  // Before the server's Shutdown(), which would leave descriptors behind that come later. Harmless when repeated.
  void Stop();

 private:
  explicit GrpcListener(Options options);

  // All below on the thread.
  void Run();
  void Accept(int listener);
  // False: it is to be closed.
  bool Admit(int listener, int socket);
  void OnRefused(const std::string& client);
  void Pause(int error);

  const Options options_;
  int port_ = 0;
  // Of the Unix socket.
  std::string path_;
  std::vector<UniqueFd> listeners_;
  std::unique_ptr<Acceptor> acceptor_;
  // Of the thread, from Start() on.
  OpenConnections open_;
  int64_t refused_ = 0;
  std::chrono::steady_clock::time_point refusals_logged_;
  std::chrono::steady_clock::time_point pause_logged_;
  // Nobody is let in until then.
  std::chrono::steady_clock::time_point paused_until_;

  // An eventfd; itself thread-safe.
  UniqueFd stop_;
  // Started last, joined by Stop().
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_GRPC_LISTENER_H_
