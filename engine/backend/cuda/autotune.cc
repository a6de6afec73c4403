#include "engine/backend/cuda/autotune.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kSamples = 5;
// Between two events, since the clock behind them is coarse.
constexpr int kRunsPerSample = 3;
// Of a run that takes more than kLong milliseconds, whose times vary less, fewer samples of one run each.
constexpr float kLong = 5.0f;
constexpr int kLongSamples = 3;
// Two single runs that take so many times the best median mean that the candidate is not worth more, unless they are
// below kShort milliseconds, which the host's delays between launches may double. One alone may be a hiccup.
constexpr float kTooSlow = 2.0f, kShort = 0.1f;

class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  absl::Status Create() { return ToStatus(cudaEventCreateWithFlags(&event_, cudaEventDefault), "event"); }
  absl::Status Record(cudaStream_t stream) { return ToStatus(cudaEventRecord(event_, stream), "event"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Stopwatch {
 public:
  Stopwatch(const Context& context, const std::function<absl::Status(int)>& run) : context_(context), run_(run) {}

  absl::Status Create() {
    AMPD_RETURN_IF_ERROR(start_.Create());
    return end_.Create();
  }

  // Milliseconds of a run; below 0 for a candidate that does not run, though the device does. Once two single runs show
  // that it takes much longer than `best`, the time of the shorter one stands for the median.
  absl::StatusOr<float> MedianOf(int candidate, float best) {
    AMPD_ASSIGN_OR_RETURN(const bool ok, Runs(candidate));
    if (!ok) return -1;
    const auto too_slow = [&](float time) { return time > kShort && time > kTooSlow * best; };
    AMPD_ASSIGN_OR_RETURN(float single, Sample(candidate, 1));
    if (too_slow(single)) {
      AMPD_ASSIGN_OR_RETURN(const float again, Sample(candidate, 1));
      single = std::min(single, again);
    }
    if (single < 0 || too_slow(single)) return single;
    std::array<float, kSamples> samples = {single};
    const bool is_long = single > kLong;
    const int count = is_long ? kLongSamples : kSamples;
    for (int i = is_long ? 1 : 0; i < count; ++i) {
      AMPD_ASSIGN_OR_RETURN(samples[i], Sample(candidate, is_long ? 1 : kRunsPerSample));
      if (samples[i] < 0) return -1;
    }
    std::nth_element(samples.begin(), samples.begin() + count / 2, samples.begin() + count);
    return samples[count / 2];
  }

  // Of the last candidate that did not run.
  const absl::Status& why() const { return why_; }

 private:
  absl::StatusOr<bool> Runs(int candidate) {
    absl::Status status = run_(candidate);
    if (absl::IsUnavailable(status)) return status;
    if (status.ok()) return true;
    why_ = std::move(status);
    return false;
  }

  // Milliseconds of each of `runs` runs; below 0 if one failed.
  absl::StatusOr<float> Sample(int candidate, int runs) {
    AMPD_RETURN_IF_ERROR(start_.Record(context_.stream()));
    for (int i = 0; i < runs; ++i) {
      AMPD_ASSIGN_OR_RETURN(const bool ok, Runs(candidate));
      if (!ok) return -1;
    }
    AMPD_RETURN_IF_ERROR(end_.Record(context_.stream()));
    AMPD_RETURN_IF_ERROR(context_.Wait());
    float time = 0;
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&time, start_.get(), end_.get()), "elapsed time");
    return time / static_cast<float>(runs);
  }

  const Context& context_;
  const std::function<absl::Status(int)>& run_;
  Event start_, end_;
  absl::Status why_;
};

}  // namespace

std::string AutotuneKey(const Context& context, absl::string_view library, absl::string_view op) {
  const DeviceProperties& p = context.properties();
  int driver = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));  // 0 where there is none, and then nothing is measured
  return absl::StrCat(p.name, "|", p.major, ".", p.minor, "|driver ", driver, "|", library, "|", op);
}

absl::StatusOr<bool> MayMeasure(const Context& context) {
  if (!context.is_open() || context.autotune() == nullptr) return false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  AMPD_CUDA_RETURN_IF_ERROR(cudaStreamIsCapturing(context.stream(), &capture), "capture status");
  return capture == cudaStreamCaptureStatusNone;
}

absl::StatusOr<int> FastestOf(const Context& context, int count, const std::function<absl::Status(int)>& run) {
  Stopwatch stopwatch(context, run);
  AMPD_RETURN_IF_ERROR(stopwatch.Create());
  int fastest = -1;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) {
    AMPD_ASSIGN_OR_RETURN(const float time, stopwatch.MedianOf(i, least));
    if (time < 0 || time >= least) continue;
    fastest = i;
    least = time;
  }
  if (fastest < 0) {
    return absl::NotFoundError(
        absl::StrCat("[autotune] none of ", count, " candidates runs: ", stopwatch.why().message()));
  }
  return fastest;
}

}  // namespace ampd::cuda
