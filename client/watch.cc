#include "client/watch.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"
#include "client/retry.h"

namespace ampd::client {
namespace {

class Watcher {
 public:
  Watcher(Connection* connection, const WatchOptions& options, Interrupt* interrupt, const WatchCallbacks& callbacks)
      : connection_(connection),
        options_(options),
        interrupt_(interrupt),
        callbacks_(callbacks),
        last_sequence_(options.after_sequence),
        backoff_(options.first_delay, options.longest_delay),
        ever_connected_(connection->answered()) {}

  absl::StatusOr<v1::StateChange> Run() {
    while (true) {
      const absl::Status status = WatchOnce();
      if (!gap_.ok()) return gap_;
      if (status.ok() && !end_.has_value()) LookWhetherEnded();
      if (end_.has_value()) return *end_;
      if (interrupt_->raised()) return absl::CancelledError("interrupted");
      if (absl::Now() >= options_.deadline) return absl::DeadlineExceededError("the time to wait is over");
      // A stream that ends well before the terminal event is a server that stops in good order.
      if (!status.ok() && !IsTransient(status)) return status;
      if (!ever_connected_) return status.ok() ? absl::UnavailableError("the server ended the stream") : status;
      if (absl::Status lost = WaitToReconnect(status); !lost.ok()) return lost;
    }
  }

 private:
  absl::Status WatchOnce() {
    v1::WatchJobRequest request;
    request.set_job_id(options_.job_id);
    request.set_after_sequence(last_sequence_);
    const absl::Time begin = absl::Now();
    const absl::Status status = connection_->WatchJob(request, options_.deadline, interrupt_,
                                                      [this](const v1::JobEvent& event) { OnEvent(event); });
    // Who is turned away for long is not connected.
    const bool was_open = absl::Now() - begin >= options_.longest_dial && !RetryDelayOf(status);
    ever_connected_ = ever_connected_ || was_open || connection_->answered();
    if (was_open) OnConnected();
    return status;
  }

  void OnConnected() {
    if (lost_since_ != absl::InfinitePast() && callbacks_.on_resumed) callbacks_.on_resumed();
    lost_since_ = absl::InfinitePast();
    backoff_.Reset();
  }

  void OnEvent(const v1::JobEvent& event) {
    if (!gap_.ok() || event.sequence() <= last_sequence_) return;
    // A job that had ended was retried.
    end_.reset();
    if (event.first_sequence() > last_sequence_ + 1) {
      gap_ = absl::DataLossError(
          absl::StrCat("the server left out the events ", last_sequence_ + 1, " to ", event.first_sequence() - 1));
      return;
    }
    OnConnected();
    last_sequence_ = event.sequence();
    callbacks_.on_event(event);
    if (event.has_state_change() && IsTerminal(event.state_change().to())) end_ = event.state_change();
  }

  // A stream is empty when the terminal event is one of those already seen.
  void LookWhetherEnded() {
    const absl::StatusOr<v1::Job> job = connection_->GetJob(options_.job_id);
    if (job.ok() && IsTerminal(job->state()) && job->last_sequence() <= last_sequence_) end_ = EndOf(*job);
  }

  absl::Status WaitToReconnect(const absl::Status& status) {
    if (lost_since_ == absl::InfinitePast()) {
      lost_since_ = absl::Now();
      if (callbacks_.on_lost) callbacks_.on_lost(status);
    }
    if (absl::Now() - lost_since_ >= options_.give_up_after) {
      return absl::UnavailableError(
          absl::StrCat("gave up after ", absl::FormatDuration(options_.give_up_after), ": ", status.message()));
    }
    const absl::Duration delay = std::min(backoff_.Next(), options_.deadline - absl::Now());
    return interrupt_->SleepFor(delay) ? absl::OkStatus() : absl::CancelledError("interrupted");
  }

  Connection* connection_;
  const WatchOptions& options_;
  Interrupt* interrupt_;
  const WatchCallbacks& callbacks_;
  uint64_t last_sequence_;
  Backoff backoff_;
  bool ever_connected_;
  absl::Time lost_since_ = absl::InfinitePast();  // InfinitePast: not lost.
  std::optional<v1::StateChange> end_;
  absl::Status gap_;
};

}  // namespace

absl::StatusOr<v1::StateChange> WatchToTheEnd(Connection* connection, const WatchOptions& options, Interrupt* interrupt,
                                              const WatchCallbacks& callbacks) {
  Interrupt never;
  return Watcher(connection, options, interrupt == nullptr ? &never : interrupt, callbacks).Run();
}

}  // namespace ampd::client
