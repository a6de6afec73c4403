// The series of single jobs, which go five minutes after the job's end.
#ifndef AMPD_SERVER_METRICS_JOB_SERIES_H_
#define AMPD_SERVER_METRICS_JOB_SERIES_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/labels.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"
#include "server/events/clock.h"
#include "server/metrics/definitions.h"
#include "server/store/records.h"

namespace ampd {

// Not thread-safe.
class JobSeries {
 public:
  using Gauges = std::unordered_map<const Metric*, prometheus::Family<prometheus::Gauge>*>;
  using Counters = std::unordered_map<const Metric*, prometheus::Family<prometheus::Counter>*>;

  // Of a job's loss scales.
  struct Floor {
    double min = 0;
    // Phases may come to scale no loss; they report the scale 1.
    bool may_end = false;

    // 0 where a loss that has this scale is not scaled.
    double Of(double scale) const { return scale < min || (may_end && scale <= 1) ? 0 : min; }
  };

  // Both hold every metric of jobs by the time of OnWrite and, with `clock`, outlive this.
  JobSeries(const Gauges* gauges, const Counters* counters, const Clock* clock)
      : gauges_(gauges), counters_(counters), clock_(clock) {}

  // What the store knew when the daemon began: for Prometheus a counter that comes back with less has begun anew.
  void Restore(const StepsOfJobs& steps) { restored_ = steps; }
  // Drops what has expired, too, once in a while: where nobody asks for the figures that alone does.
  void OnWrite(const JobWrite& write);
  // As Metrics's.
  void OnEvaluating(const std::string& job);
  void DropExpired();

 private:
  struct Series {
    std::map<std::pair<const Metric*, prometheus::Labels>, prometheus::Gauge*> gauges;
    std::map<std::pair<const Metric*, prometheus::Labels>, prometheus::Counter*> counters;
    // When they go; far away while the job is under way.
    absl::Duration expires = absl::InfiniteDuration();
    // Those that have series of their own.
    std::set<std::string> phases;
    // Of the attempt, where it scales losses dynamically.
    std::optional<Floor> floor;
  };

  // `labels` beside that of the job.
  prometheus::Gauge& GaugeOf(const std::string& job, const Metric& metric, prometheus::Labels labels = {});
  prometheus::Counter& CounterOf(const std::string& job, const Metric& metric, prometheus::Labels labels = {});
  // False for a phase too many, which gets no series.
  bool HasSeries(const std::string& job, const std::string& phase);
  // Counters follow a figure that counts from the job's start and may go back when training does.
  void RaiseTo(const std::string& job, const Metric& metric, const prometheus::Labels& labels, double total);
  void CountSteps(const std::string& job, const std::string& phase, int64_t applied, int64_t skipped);
  void OnStep(const std::string& job, const v1::StepReport& step);
  void OnCheckpoint(const std::string& job, const v1::JobEvent& event);
  void OnOverflow(const std::string& job, const v1::OverflowSkip& skip);
  void OnEvaluation(const std::string& job, const v1::Evaluation& evaluation);
  // `event` is a state change; of OnRunning one to RUNNING.
  void OnStateChange(const v1::Job& job, const v1::JobEvent& event);
  void OnRunning(const v1::Job& job, const v1::JobEvent& event);
  void OnEvent(const v1::Job& record, const v1::JobEvent& event);

  const Gauges* const gauges_;
  const Counters* const counters_;
  const Clock* const clock_;
  std::unordered_map<std::string, Series> jobs_;
  // Of the jobs that had not ended then.
  StepsOfJobs restored_;
  // When OnWrite looks for what has expired.
  absl::Duration next_look_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_METRICS_JOB_SERIES_H_
