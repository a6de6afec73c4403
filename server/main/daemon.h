// The daemon put together: store, event log, controller, launcher, gRPC and HTTP.
#ifndef AMPD_SERVER_MAIN_DAEMON_H_
#define AMPD_SERVER_MAIN_DAEMON_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/config.pb.h"
#include "server/main/drain_requests.h"

namespace ampd {

class Daemon {
 public:
  // `config` as LoadConfiguration gives it. Block SIGTERM and SIGINT before. FAILED_PRECONDITION when another daemon
  // uses the state directory, UNAVAILABLE naming the address when one cannot be bound. `before_jobs` is called once
  // all that may take long is done, before workers are taken up and jobs start.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const v1::ServerConfig& config,
                                                       const std::function<void()>& before_jobs);
  // Stops serving. Workers that still run train on; the next daemon takes them up.
  ~Daemon();

  // HOST:PORT with the ports really used.
  const std::string& grpc_address() const;
  const std::string& http_address() const;

  // Stops admitting jobs, reports NOT_SERVING, and has every worker checkpoint and stop. `done` is called once, on
  // another thread, when none is left or `timeout` has passed. A second call joins the first, with what is left of the
  // shorter time. `reason`, which may be empty, goes into the jobs' events, the first call's alone.
  void Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done);
  // Stops admitting jobs, reports NOT_SERVING, and leaves the workers alone. `done` is called once, on another thread,
  // when this object may be destroyed; the next daemon takes them up, and no step is lost.
  void Detach(std::function<void()> done);

  // What DrainServer and notices ask for; whoever called Start() obeys.
  DrainRequests& drain_requests();

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_DAEMON_H_
