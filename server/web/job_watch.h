// A WatchJob call that one can wait for with a deadline.
#ifndef AMPD_SERVER_WEB_JOB_WATCH_H_
#define AMPD_SERVER_WEB_JOB_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ampd/v1/event.pb.h"
#include "server/web/backend.h"

namespace ampd {

// Used by one thread. Holds one event at most: the service's stream waits until it is asked for more.
class JobWatch {
 public:
  enum class Got { kEvent, kNothing, kEnd };

  // `backend` outlives it.
  JobWatch(Backend* backend, const Credentials& credentials, const std::string& job_id, uint64_t after);
  // Cancels the call.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // The next event; kNothing after `patience`; kEnd, from then on, when there are no more.
  Got Next(absl::Duration patience);
  const v1::JobEvent& event() const { return event_; }
  // How it ended.
  const absl::Status& status() const { return status_; }

 private:
  enum Step : intptr_t { kStarting = 1, kReading, kFinishing, kOver };

  // What follows the step that is over, which went well or not; true: an event has come.
  bool Advance(bool ok);
  void* Tag() const { return reinterpret_cast<void*>(step_); }

  Backend::OpenCall call_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::JobEvent>> reader_;
  // Under way.
  Step step_ = kStarting;
  bool wants_more_ = false;
  v1::JobEvent event_;
  grpc::Status finished_;
  absl::Status status_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_JOB_WATCH_H_
