#include "server/worker/link_protocol.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {

void LinkProtocol::Connected() {
  hello_sent_ = welcomed_ = finished_sent_ = false;
  outbox_->Rewind();
}

v1::WorkerMessage LinkProtocol::Hello() const {
  v1::WorkerMessage message;
  v1::WorkerHello& hello = *message.mutable_hello();
  hello.set_min_protocol(kMinProtocol);
  hello.set_max_protocol(kMaxProtocol);
  hello.set_job_id(identity_.job_id);
  hello.set_attempt(identity_.attempt);
  hello.set_credential(identity_.credential);
  hello.set_pid(identity_.pid);
  return message;
}

absl::StatusOr<std::optional<v1::WorkerMessage>> LinkProtocol::NextMessage() {
  if (!hello_sent_) {
    hello_sent_ = true;
    return std::optional(Hello());
  }
  if (!welcomed_) return std::optional<v1::WorkerMessage>();
  v1::WorkerMessage message;
  if (heartbeat_) {
    *message.mutable_heartbeat() = *std::exchange(heartbeat_, std::nullopt);
    return std::optional(std::move(message));
  }
  std::optional<v1::WorkerEvent> event;
  if (!forgotten_) {
    AMPD_ASSIGN_OR_RETURN(event, outbox_->Next());
  }
  if (event) {
    *message.mutable_event() = *std::move(event);
    return std::optional(std::move(message));
  }
  const bool more = !forgotten_ && outbox_->spooling();
  if (!finished_ || finished_sent_ || more) return std::optional<v1::WorkerMessage>();
  finished_sent_ = true;
  *message.mutable_finished() = *finished_;
  message.mutable_finished()->set_last_event_number(forgotten_ ? daemon_has_ : outbox_->last_number());
  return std::optional(std::move(message));
}

absl::Status LinkProtocol::OnMessage(const v1::DaemonMessage& message) {
  if (message.has_welcome()) return OnWelcome(message.welcome());
  if (!welcomed_) return absl::FailedPreconditionError("the daemon's first message is not a welcome");
  switch (message.body_case()) {
    case v1::DaemonMessage::kAcknowledgedNumber:
      outbox_->Acknowledge(message.acknowledged_number());
      break;
    case v1::DaemonMessage::kCommand:
      commands_.push_back(message.command());
      break;
    case v1::DaemonMessage::kGoodbye:
      if (!finished_) return absl::FailedPreconditionError("the daemon said goodbye to an attempt that is not over");
      goodbye_ = true;
      break;
    default:
      // A newer daemon may say more than this worker knows.
      break;
  }
  return absl::OkStatus();
}

absl::Status LinkProtocol::OnWelcome(const v1::DaemonWelcome& welcome) {
  if (welcomed_) return absl::FailedPreconditionError("the daemon sent a second welcome");
  if (welcome.protocol() < kMinProtocol || welcome.protocol() > kMaxProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("the daemon speaks version ", welcome.protocol(),
                                                      " of the worker protocol; this worker ", kMinProtocol, " to ",
                                                      kMaxProtocol));
  }
  welcomed_ = true;
  if (!welcome.session_key().empty()) identity_.credential = welcome.session_key();
  daemon_has_ = welcome.acknowledged_number();
  forgotten_ = forgotten_ || daemon_has_ < outbox_->acknowledged_number();
  outbox_->Acknowledge(daemon_has_);
  if (!assignment_) assignment_ = welcome;
  return absl::OkStatus();
}

std::vector<v1::DaemonCommand> LinkProtocol::TakeCommands() { return std::exchange(commands_, {}); }

}  // namespace ampd
