// How far a job is, told from its events alone.
#ifndef AMPD_CLIENT_OUTPUT_PROGRESS_H_
#define AMPD_CLIENT_OUTPUT_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "ampd/v1/event.pb.h"
#include "client/output/event_line.h"

namespace ampd::client {

// Fed with a job's events in order. Times are the events' own, so that a replay shows what a watcher saw.
class Progress {
 public:
  void Observe(const v1::JobEvent& event);

  // "step 1405/4690 30%  loss 0.3121  scale 65536  skips 3  9.1k samples/s  ETA 0:31", or the state before the first
  // step; at most `columns` wide, for which whole figures are left out: MFU first, then scale, skips, speed, loss.
  std::string Line(int columns) const;

  // Seconds until the last step at the pace of the last half minute; negative when not known.
  double EtaSeconds() const;

  // Figures for the closing line; those of the terminal event hold where it has them.
  v1::JobSummary summary() const { return summary_; }

  // Of the newest step report.
  const IdlePhases& idle() const { return idle_; }

 private:
  struct Mark {
    absl::Time time;
    int64_t step;
  };

  void ObserveStep(absl::Time time, const v1::StepReport& step);

  v1::Job::State state_ = v1::Job::STATE_UNSPECIFIED;
  v1::JobSummary summary_;
  IdlePhases idle_;
  // Of the newest evaluation.
  int64_t evaluated_step_ = 0;
  std::deque<Mark> marks_;  // Of the last half minute, the oldest first.
};

// "SUCCEEDED accuracy=0.91 applied=1405 skipped=3", "FAILED DATA: ...", "CANCELLED".
std::string ClosingLine(const v1::StateChange& end, const v1::JobSummary& seen);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_PROGRESS_H_
