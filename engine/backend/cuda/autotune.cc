#include "engine/backend/cuda/autotune.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kSamples = 5;
// Between two events, since the clock behind them is coarse.
constexpr int kRunsPerSample = 3;

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

// Milliseconds; below 0 for a candidate that does not run, though the device does.
absl::StatusOr<float> MedianOf(const Context& context, int candidate, const std::function<absl::Status(int)>& run,
                               Event* start, Event* end) {
  const auto runs = [&]() -> absl::StatusOr<bool> {
    const absl::Status status = run(candidate);
    if (absl::IsUnavailable(status)) return status;
    return status.ok();
  };
  AMPD_ASSIGN_OR_RETURN(bool ok, runs());
  std::array<float, kSamples> samples;
  for (float& sample : samples) {
    AMPD_RETURN_IF_ERROR(start->Record(context.stream()));
    for (int i = 0; ok && i < kRunsPerSample; ++i) {
      AMPD_ASSIGN_OR_RETURN(ok, runs());
    }
    if (!ok) return -1;
    AMPD_RETURN_IF_ERROR(end->Record(context.stream()));
    AMPD_RETURN_IF_ERROR(context.Wait());
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&sample, start->get(), end->get()), "elapsed time");
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

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
  Event start, end;
  AMPD_RETURN_IF_ERROR(start.Create());
  AMPD_RETURN_IF_ERROR(end.Create());
  int fastest = -1;
  float least = 0;
  for (int i = 0; i < count; ++i) {
    AMPD_ASSIGN_OR_RETURN(const float time, MedianOf(context, i, run, &start, &end));
    if (time < 0 || (fastest >= 0 && time >= least)) continue;
    fastest = i;
    least = time;
  }
  if (fastest < 0) return absl::NotFoundError(absl::StrCat("[autotune] none of ", count, " candidates runs"));
  return fastest;
}

}  // namespace ampd::cuda
