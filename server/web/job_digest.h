// What the web page shows of a job's events, kept so that a look costs the new events alone.
#ifndef AMPD_SERVER_WEB_JOB_DIGEST_H_
#define AMPD_SERVER_WEB_JOB_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "ampd/v1/event.pb.h"
#include "engine/core/mutex.h"
#include "server/events/event_log.h"
#include "server/web/series.h"

namespace ampd {

struct EvaluationPoint {
  int64_t step = 0;
  int64_t epoch = 0;
  std::map<std::string, double> metrics;
};

// Of one job. Not thread-safe.
class JobDigest {
 public:
  // The columns of a phase's series, and of throughput().
  enum PhaseColumn { kLoss, kLossScale, kLearningRate, kGradientNorm };
  enum ThroughputColumn { kSamplesPerSecond, kStepSeconds, kInputWaitSeconds, kFlopsUtilization };

  // Rows over all series; beyond, neighbours are merged.
  static constexpr size_t kMaxRows = 32768;
  static constexpr size_t kMaxEvaluations = 16384;
  // Of other events; beyond, the older half is forgotten.
  static constexpr size_t kMaxOthers = 262144;

  // The next events of the job, in order.
  void Add(const v1::JobEvent& event);

  // In the order in which they came first.
  const std::vector<std::pair<std::string, Series>>& phases() const { return phases_; }
  const Series& throughput() const { return throughput_; }
  const std::vector<EvaluationPoint>& evaluations() const { return evaluations_; }
  int64_t last_step() const { return throughput_.last_step(); }
  int64_t total_steps() const { return total_steps_; }
  // Of the last event added.
  uint64_t sequence() const { return sequence_; }

  // Sequence numbers of the newest `count` events with one of these payloads, step reports not among them, oldest
  // first.
  std::vector<uint64_t> Newest(const std::vector<v1::JobEvent::PayloadCase>& kinds, size_t count) const;

  size_t Bytes() const;

 private:
  void AddReport(const v1::StepReport& report);
  void Rewind(int64_t to_step);
  // Merges rows until half of them are free.
  void Coarsen();
  // Null for one too many.
  Series* PhaseOf(const std::string& name);

  std::vector<std::pair<std::string, Series>> phases_;
  Series throughput_;
  // Reports of a row at most, of those that were merged.
  int64_t grain_ = 1;
  std::vector<EvaluationPoint> evaluations_;
  // sequence * 64 + payload, ascending.
  std::vector<uint64_t> others_;
  int64_t total_steps_ = 0;
  uint64_t sequence_ = 0;
};

// Digests of the jobs looked at last. Thread-safe.
class DigestCache {
 public:
  // `log` outlives the cache. `max_bytes`: beyond, those are forgotten that were not looked at for the longest time.
  explicit DigestCache(EventLog* log, size_t max_bytes = size_t{40} << 20) : log_(log), max_bytes_(max_bytes) {}

  // Calls `look` with the digest of `job_id` (a whole id), up to its newest event. Few digests are brought up to date
  // at a time; others wait. Errors as EventLog::Read.
  absl::Status Look(const std::string& job_id, absl::FunctionRef<void(const JobDigest&)> look);

 private:
  struct Entry {
    explicit Entry(std::string id) : job_id(std::move(id)) {}

    const std::string job_id;
    Mutex mutex;
    JobDigest digest ABSL_GUARDED_BY(mutex);
    // Guarded by the cache's mutex.
    size_t bytes = 0;
  };

  std::shared_ptr<Entry> Take(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Update(const std::string& job_id, JobDigest& digest);
  void GiveBack(const std::shared_ptr<Entry>& entry, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  EventLog* const log_;
  const size_t max_bytes_;
  Mutex mutex_;
  CondVar changed_;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Looked at last first.
  std::list<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_JOB_DIGEST_H_
