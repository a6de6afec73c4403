#include "server/worker/link_stream.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "ampd/v1/worker_link.grpc.pb.h"
#include "engine/core/mutex.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

std::shared_ptr<grpc::Channel> Dial(const std::string& uri) {
  grpc::ChannelArguments arguments;
  // gRPC shares connections, and their back-off, between channels otherwise.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxLinkMessageBytes);
  return grpc::CreateCustomChannel(uri, grpc::InsecureChannelCredentials(), arguments);
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

class LinkStream::Reactor : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::DaemonMessage> {
 public:
  Reactor(const std::string& uri, std::function<void()> wake)
      : wake_(std::move(wake)), stub_(v1::WorkerLink::NewStub(Dial(uri))) {
    stub_->async()->Attach(&context_, this);
    // Writes start outside of reactions, so the stream is held until this side lets go.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  ~Reactor() override {
    Cancel();
    const MutexLock lock(&mutex_);
    while (!status_.has_value()) done_.Wait(&mutex_);
  }

  bool writable() const {
    const MutexLock lock(&mutex_);
    return !writing_ && !broken_ && !status_;
  }

  void Write(v1::WorkerMessage message) {
    {
      const MutexLock lock(&mutex_);
      if (released_) return;
      writing_ = true;
    }
    outgoing_ = std::move(message);
    StartWrite(&outgoing_);
  }

  std::vector<v1::DaemonMessage> TakeMessages() {
    const MutexLock lock(&mutex_);
    return std::exchange(inbox_, {});
  }

  std::optional<absl::Status> ended() {
    bool release = false;
    {
      const MutexLock lock(&mutex_);
      if (broken_ && !released_) release = released_ = true;
    }
    if (release) RemoveHold();
    const MutexLock lock(&mutex_);
    return status_;
  }

  void Cancel() {
    context_.TryCancel();
    {
      const MutexLock lock(&mutex_);
      if (released_) return;
      released_ = true;
    }
    RemoveHold();
  }

 private:
  void OnReadDone(bool ok) override {
    {
      const MutexLock lock(&mutex_);
      if (ok) inbox_.push_back(std::move(incoming_));
      if (!ok) broken_ = true;
    }
    incoming_.Clear();
    if (ok) StartRead(&incoming_);
    wake_();
  }

  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    wake_();
  }

  void OnDone(const grpc::Status& status) override {
    // Woken under the lock: the destructor may free this object as soon as it sees the status.
    const MutexLock lock(&mutex_);
    status_ = ToAbsl(status);
    wake_();
    done_.NotifyAll();
  }

  const std::function<void()> wake_;
  const std::unique_ptr<v1::WorkerLink::Stub> stub_;
  // Used by the constructor, and to cancel, which any thread may.
  grpc::ClientContext context_;
  // The stream's own while it writes, which `writing_` tells.
  v1::WorkerMessage outgoing_;
  // Used by reactions of reads only, which come one at a time.
  v1::DaemonMessage incoming_;
  mutable Mutex mutex_;
  CondVar done_;
  std::vector<v1::DaemonMessage> inbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

LinkStream::LinkStream(const std::string& uri, std::function<void()> wake)
    : reactor_(std::make_unique<Reactor>(uri, std::move(wake))) {}
LinkStream::~LinkStream() = default;
bool LinkStream::writable() const { return reactor_->writable(); }
void LinkStream::Write(v1::WorkerMessage message) { reactor_->Write(std::move(message)); }
std::vector<v1::DaemonMessage> LinkStream::TakeMessages() { return reactor_->TakeMessages(); }
std::optional<absl::Status> LinkStream::ended() const { return reactor_->ended(); }
void LinkStream::Cancel() { reactor_->Cancel(); }

}  // namespace ampd
