// What a training tells its observer: step reports, coalesced, and notable events, never coalesced, in step order.
#ifndef AMPD_ENGINE_TRAIN_REPORT_H_
#define AMPD_ENGINE_TRAIN_REPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "engine/train/trainer.h"
#include "google/protobuf/timestamp.pb.h"

namespace ampd::train {

// Now, for an event.
google::protobuf::Timestamp EventTime();

// What one attempted step of a phase adds to a report.
struct PhaseRecord {
  size_t phase = 0;
  double loss = 0;
  bool applied = false;
  // Applied steps only.
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 1;  // after the step
  int64_t steps_applied = 0;
  int64_t steps_skipped = 0;
};

// What one attempted step adds to a report.
struct StepRecord {
  int64_t step = 0;   // from 1
  int64_t epoch = 0;  // from 1
  // Those that ran.
  absl::Span<const PhaseRecord> phases;
  int64_t samples = 0;
  double seconds = 0;  // the whole step, waiting included
  double wait_seconds = 0;
};

// A phase as a training starts or resumes.
struct PhaseStart {
  std::string name;
  // The last applied step's, or the first one's; reported until a step was applied.
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t steps_applied = 0;
  int64_t steps_skipped = 0;
};

// Monotonic, seconds.
using Clock = std::function<double()>;
double SteadySeconds();

// Not thread-safe. Errors are the observer's.
class Reporter {
 public:
  // `observer` outlives it.
  Reporter(const v1::ReportSpec& spec, const std::vector<PhaseStart>& phases, int64_t total_steps,
           TrainerObserver* observer, Clock clock = SteadySeconds);

  // Adds the next step. Emits a report when one is due: every `every_steps` attempted steps (counted from the job's
  // start), or when 1 / `max_per_second` has passed since the last; the first step is reported at once.
  absl::Status AddStep(const StepRecord& record);

  // Reports the steps not yet reported, if there are any.
  absl::Status Flush();

  // Flushes, then hands over `event` with its time set.
  absl::Status Emit(v1::JobEvent event);
  absl::Status Log(v1::LogLine::Severity severity, const std::string& text);

 private:
  bool Due(int64_t step);

  const v1::ReportSpec spec_;
  const int64_t total_steps_;
  TrainerObserver* observer_;
  Clock clock_;
  double last_report_;  // seconds of clock_

  // What of a phase is not yet reported.
  struct Range {
    std::string name;
    PhaseRecord last;
    double loss_sum = 0;
    int64_t finite_losses = 0;
    double gradient_norm;
    double learning_rate;
  };
  static v1::PhaseReport ReportOf(const Range& range);

  std::vector<Range> phases_;
  // The range not yet reported; first_step_ 0: empty.
  int64_t first_step_ = 0;
  int64_t last_step_ = 0;
  int64_t epoch_ = 0;
  int64_t samples_ = 0;
  int64_t steps_ = 0;
  double seconds_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_REPORT_H_
