// The worker's side of worker_link.proto without gRPC: what to send next and what an answer means.
#ifndef AMPD_SERVER_WORKER_LINK_PROTOCOL_H_
#define AMPD_SERVER_WORKER_LINK_PROTOCOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/worker_link.pb.h"
#include "server/worker/event_outbox.h"

namespace ampd {

struct WorkerIdentity {
  std::string job_id;
  uint32_t attempt = 0;
  // One-time; replaced by the session key of the first welcome.
  std::string credential;
  int32_t pid = 0;
};

// Versions of worker_link.proto this program speaks.
inline constexpr uint32_t kMinProtocol = 1;
inline constexpr uint32_t kMaxProtocol = 1;

// Driven by one thread. A connection goes: Connected(), then NextMessage() whenever the stream can take one,
// OnMessage() for each that arrives. Events, `finished` included, are sent again on the next connection until
// acknowledged.
//
// A welcome that knows of fewer events than were acknowledged comes from a daemon whose database was restored from an
// older copy: what is between is gone, and nothing that follows would be taken. From then on no events are sent, and
// `finished` comes after those that the daemon has.
class LinkProtocol {
 public:
  // `outbox` outlives this.
  LinkProtocol(WorkerIdentity identity, EventOutbox* outbox) : identity_(std::move(identity)), outbox_(outbox) {}

  // A new stream was opened.
  void Connected();

  // The next message for this connection; nullopt when there is none for now. Errors are the outbox's.
  absl::StatusOr<std::optional<v1::WorkerMessage>> NextMessage();

  // FAILED_PRECONDITION for an answer that breaks the protocol.
  absl::Status OnMessage(const v1::DaemonMessage& message);

  // Replaces a heartbeat not yet sent.
  void SetHeartbeat(const v1::WorkerHeartbeat& heartbeat) { heartbeat_ = heartbeat; }
  // The attempt is over; sent after every event.
  void SetFinished(const v1::WorkerFinished& finished) { finished_ = finished; }

  // The first welcome: what to train. Later ones change only the credential and what is acknowledged.
  const std::optional<v1::DaemonWelcome>& assignment() const { return assignment_; }
  // Whether this connection was welcomed.
  bool welcomed() const { return welcomed_; }
  // The daemon has everything; the worker may exit.
  bool goodbye() const { return goodbye_; }
  // Whether the daemon has forgotten events that it had acknowledged.
  bool forgotten() const { return forgotten_; }
  // Commands since the last call, oldest first.
  std::vector<v1::DaemonCommand> TakeCommands();

 private:
  absl::Status OnWelcome(const v1::DaemonWelcome& welcome);
  v1::WorkerMessage Hello() const;

  WorkerIdentity identity_;
  EventOutbox* outbox_;
  std::optional<v1::DaemonWelcome> assignment_;
  std::optional<v1::WorkerHeartbeat> heartbeat_;
  std::optional<v1::WorkerFinished> finished_;
  std::vector<v1::DaemonCommand> commands_;
  // By the newest welcome.
  uint64_t daemon_has_ = 0;
  bool forgotten_ = false;
  bool hello_sent_ = false;
  bool welcomed_ = false;
  bool finished_sent_ = false;
  bool goodbye_ = false;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_LINK_PROTOCOL_H_
