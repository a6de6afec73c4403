#include "server/web/job_watch.h"

#include <chrono>

namespace ampd {

JobWatch::JobWatch(Backend* backend, const Credentials& credentials, const std::string& job_id, uint64_t after)
    : call_(backend, credentials) {
  if (call_.stub() == nullptr) {
    step_ = kOver;
    status_ = Backend::Stopped();
    return;
  }
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  request.set_after_sequence(after);
  reader_ = call_.stub()->AsyncWatchJob(call_.context(), request, &queue_, Tag());
}

JobWatch::~JobWatch() {
  if (step_ != kOver) call_.context()->TryCancel();
  // An event that came is asked on from, so that the call comes to its end.
  while (Next(absl::Minutes(1)) != Got::kEnd) {
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool JobWatch::Advance(bool ok) {
  if (step_ == kFinishing) {
    step_ = kOver;
    status_ = FromGrpcStatus(finished_);
  } else if (!ok) {
    step_ = kFinishing;
    reader_->Finish(&finished_, Tag());
  } else if (step_ == kStarting) {
    step_ = kReading;
    reader_->Read(&event_, Tag());
  } else {
    wants_more_ = true;
    return true;
  }
  return false;
}

JobWatch::Got JobWatch::Next(absl::Duration patience) {
  if (wants_more_) {
    wants_more_ = false;
    reader_->Read(&event_, Tag());
  }
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience);
  while (step_ != kOver) {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return Got::kNothing;
    if (Advance(ok)) return Got::kEvent;
  }
  return Got::kEnd;
}

}  // namespace ampd
