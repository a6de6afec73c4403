#include "server/web/backend.h"

#include "absl/strings/str_cat.h"
#include "server/service/call_peer.h"
#include "server/web/access.h"

namespace ampd {

absl::StatusOr<v1::Job> Backend::GetJob(const Credentials& credentials, const std::string& id) {
  v1::GetJobRequest request;
  request.set_job_id(id);
  return Call<v1::GetJobRequest, v1::Job>(credentials, &Stub::GetJob, request);
}

absl::Status Backend::Stopped() { return absl::UnavailableError("the server is shutting down"); }

Backend::OpenCall::OpenCall(Backend* backend, const Credentials& credentials) : backend_(backend) {
  // gRPC ends the process over a header that it cannot send.
  if (IsSecretText(credentials.secret)) {
    context_.AddMetadata("authorization", absl::StrCat("Bearer ", credentials.secret));
  }
  context_.AddMetadata(kHttpPeerKey, credentials.peer);
  const MutexLock lock(&backend_->mutex_);
  if (backend_->is_stopped_) return;
  stub_ = backend_->stub_.get();
  backend_->calls_.insert(this);
}

Backend::OpenCall::~OpenCall() {
  const MutexLock lock(&backend_->mutex_);
  backend_->calls_.erase(this);
  // Under the lock: once there are no calls the backend may go.
  backend_->changed_.NotifyAll();
}

void Backend::Stop() {
  std::unique_ptr<Stub> stub;
  {
    const MutexLock lock(&mutex_);
    is_stopped_ = true;
    for (OpenCall* call : calls_) call->context()->TryCancel();
    while (!calls_.empty()) changed_.Wait(&mutex_);
    stub = std::move(stub_);
  }
}

}  // namespace ampd
