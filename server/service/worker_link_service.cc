#include "server/service/worker_link_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "engine/core/mutex.h"
#include "server/jobs/worker_connection.h"
#include "server/service/grpc_status.h"

namespace ampd {
namespace {

// One stream. gRPC's threads read, the controller's thread writes through WorkerConnection; the mutex orders them and
// keeps operations from starting after Finish.
class WorkerStream final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::DaemonMessage>,
                           public WorkerConnection,
                           public std::enable_shared_from_this<WorkerStream> {
 public:
  static WorkerStream* Create(Controller* controller) {
    std::shared_ptr<WorkerStream> stream(new WorkerStream(controller));
    stream->self_ = stream;
    const MutexLock lock(&stream->mutex_);
    stream->reading_ = true;
    stream->StartRead(&stream->incoming_);
    return stream.get();
  }

  void Send(v1::DaemonMessage message) override {
    const MutexLock lock(&mutex_);
    if (finished_ || closing_) return;
    if (message.has_welcome()) acknowledged_ = message.welcome().acknowledged_number();
    if (message.body_case() == v1::DaemonMessage::kAcknowledgedNumber) acknowledged_ = message.acknowledged_number();
    if (!MergeIntoLast(message)) outgoing_.push_back(std::move(message));
    WriteNext();
    ReadNext();
  }

  void Close(absl::Status status) override {
    const MutexLock lock(&mutex_);
    if (!closing_) closing_ = std::move(status);
    WriteNext();
  }

  bool Listens() const override {
    const MutexLock lock(&mutex_);
    return !IsFlooded();
  }

 private:
  explicit WorkerStream(Controller* controller) : controller_(controller) {}

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    v1::WorkerMessage message = std::move(incoming_);
    incoming_.Clear();
    Deliver(std::move(message));
    const MutexLock lock(&mutex_);
    reading_ = false;
    ReadNext();
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !closing_) closing_ = absl::UnavailableError("the worker is gone");
    if (!ok) outgoing_.clear();
    WriteNext();
  }

  void OnCancel() override {
    const MutexLock lock(&mutex_);
    if (!closing_) closing_ = absl::CancelledError("the worker cancelled its stream");
    outgoing_.clear();
    WriteNext();
  }

  void OnDone() override {
    if (attached_) controller_->WorkerDisconnected(shared_from_this());
    self_.reset();
  }

  void Deliver(v1::WorkerMessage message) {
    if (message.has_event()) {
      const MutexLock lock(&mutex_);
      newest_ = std::max(newest_, message.event().number());
    }
    if (attached_) return controller_->WorkerMessage(shared_from_this(), std::move(message));
    if (!message.has_hello()) return Close(absl::FailedPreconditionError("the first message is not a hello"));
    attached_ = true;
    controller_->WorkerAttached(std::move(*message.mutable_hello()), shared_from_this());
  }

  // A newer acknowledgement replaces one that waits.
  bool MergeIntoLast(const v1::DaemonMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    constexpr auto kAcknowledged = v1::DaemonMessage::kAcknowledgedNumber;
    if (outgoing_.empty() || message.body_case() != kAcknowledged || outgoing_.back().body_case() != kAcknowledged) {
      return false;
    }
    outgoing_.back() = message;
    return true;
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      current_ = std::move(outgoing_.front());
      outgoing_.pop_front();
      writing_ = true;
      StartWrite(&current_);
    } else if (closing_) {
      finished_ = true;
      Finish(ToGrpcStatus(*closing_));
    }
  }

  bool IsFlooded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return newest_ > acknowledged_ + WorkerLinkService::kMaxUnacknowledged;
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (reading_ || finished_ || closing_ || IsFlooded()) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  Controller* const controller_;
  // The call owns itself until OnDone.
  std::shared_ptr<WorkerStream> self_;
  // Used by reactions of reads only, which come one at a time, and by OnDone after them.
  bool attached_ = false;
  v1::WorkerMessage incoming_;

  mutable Mutex mutex_;
  v1::DaemonMessage current_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::DaemonMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  uint64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<v1::WorkerMessage, v1::DaemonMessage>* WorkerLinkService::Attach(grpc::CallbackServerContext*) {
  return WorkerStream::Create(controller_);
}

}  // namespace ampd
