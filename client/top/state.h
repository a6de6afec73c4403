// What `top` knows of a server.
#ifndef AMPD_CLIENT_TOP_STATE_H_
#define AMPD_CLIENT_TOP_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.pb.h"
#include "client/output/progress.h"

namespace ampd::client {

// The newest figures of one job, as its events tell them.
class TopHistory {
 public:
  // Of one step report.
  struct Point {
    int64_t step;
    // Of the first phase; NaN where no loss was finite. Where it is known that it took no step, that of the point
    // before.
    double loss;
    double scale;
    double samples_per_second;
    // A step was skipped since the point before.
    bool skipped;
  };

  // In order. Steps that are gone back before leave the points.
  void Observe(const v1::JobEvent& event);

  const std::deque<Point>& points() const { return points_; }
  double EtaSeconds() const { return progress_.EtaSeconds(); }
  // The newest events that are no reports of steps, as lines, the oldest first.
  const std::deque<std::string>& notes() const { return notes_; }
  // Sequence of the newest event observed.
  uint64_t sequence() const { return sequence_; }

 private:
  std::deque<Point> points_;
  std::deque<std::string> notes_;
  Progress progress_;
  int64_t skipped_ = 0;
  uint64_t sequence_ = 0;
};

struct TopState {
  std::string address;
  // When it was asked and answered.
  absl::Time time;
  // It has answered once: before that nothing of the rest is known.
  bool answered = false;
  v1::ServerInfo server;
  std::vector<v1::Device> devices;
  // Those that run first, then those that wait, then those that ended lately.
  std::vector<v1::Job> jobs;
  std::map<std::string, TopHistory> histories;  // By job id; of jobs that run.
  // Why the server could not be asked just now; the rest is as it was then.
  absl::Status lost;
};

// The order in which jobs are shown: by what they do, then the newest first; queued ones by their place in line.
void SortJobs(std::vector<v1::Job>* jobs);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_STATE_H_
