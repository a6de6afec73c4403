#include "engine/backend/cuda/lap_timer.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/handles.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr size_t kNoPart = SIZE_MAX;

class EventLapTimer : public runtime::LapTimer {
 public:
  explicit EventLapTimer(Context* context) : context_(context) {}

  runtime::LapTiming timing() const override { return runtime::LapTiming::kDeviceEvents; }
  absl::Status Start() override { return Mark(kNoPart); }
  absl::Status Lap(size_t part) override { return Mark(part); }
  absl::Status Collect(absl::Span<double> seconds) override;

 private:
  // What ended at an event.
  struct Marked {
    EventHandle event;
    size_t part = kNoPart;
  };
  absl::Status Mark(size_t part);

  Context* const context_;
  // The first used_ of them; the others are kept for the next step.
  std::vector<Marked> marks_;
  size_t used_ = 0;
};

absl::Status EventLapTimer::Mark(size_t part) {
  if (used_ == marks_.size()) {
    AMPD_ASSIGN_OR_RETURN(EventHandle event, EventHandle::CreateTimed());
    marks_.push_back({std::move(event)});
  }
  Marked& mark = marks_[used_++];
  mark.part = part;
  return ToStatus(cudaEventRecord(mark.event.get(), context_->stream()), "timing a kernel");
}

absl::Status EventLapTimer::Collect(absl::Span<double> seconds) {
  AMPD_RETURN_IF_ERROR(context_->Wait());
  const size_t used = std::exchange(used_, 0);
  for (size_t i = 1; i < used; ++i) {
    if (marks_[i].part == kNoPart) continue;
    float milliseconds = 0;
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, marks_[i - 1].event.get(), marks_[i].event.get()),
                              "timing a kernel");
    seconds[marks_[i].part] += static_cast<double>(milliseconds) * 1e-3;
  }
  return absl::OkStatus();
}

// A lap has its id before its part is known.
class ActivityLapTimer : public runtime::LapTimer {
 public:
  ActivityLapTimer(Context* context, std::unique_ptr<KernelActivity> activity)
      : context_(context), activity_(std::move(activity)) {}

  runtime::LapTiming timing() const override { return runtime::LapTiming::kKernelActivity; }
  absl::Status Start() override {
    parts_.push_back(kNoPart);
    // What CUPTI does not tell, the profile lacks; the training goes on.
    activity_->SetId(parts_.size()).IgnoreError();
    return absl::OkStatus();
  }
  absl::Status Lap(size_t part) override {
    if (!parts_.empty()) parts_.back() = part;
    return Start();
  }
  absl::Status Collect(absl::Span<double> seconds) override;
  std::vector<runtime::KernelTime> Kernels() const override;

 private:
  Context* const context_;
  const std::unique_ptr<KernelActivity> activity_;
  // Of the laps since the last Collect(); the id of parts_[i] is i + 1.
  std::vector<size_t> parts_;
  // By name and part.
  std::map<std::pair<std::string, size_t>, runtime::KernelTime> kernels_;
};

absl::Status ActivityLapTimer::Collect(absl::Span<double> seconds) {
  activity_->SetId(0).IgnoreError();
  AMPD_RETURN_IF_ERROR(context_->Wait());
  absl::StatusOr<std::vector<ActivityRecord>> records = activity_->Take();
  if (!records.ok()) records = std::vector<ActivityRecord>();
  for (ActivityRecord& record : *records) {
    const size_t part = record.id == 0 || record.id > parts_.size() ? kNoPart : parts_[record.id - 1];
    if (part < seconds.size()) seconds[part] += record.seconds;
    runtime::KernelTime& kernel = kernels_[{record.name, part}];
    kernel.name = std::move(record.name);
    kernel.part = part;
    ++kernel.calls;
    kernel.seconds += record.seconds;
  }
  parts_.clear();
  return absl::OkStatus();
}

std::vector<runtime::KernelTime> ActivityLapTimer::Kernels() const {
  std::vector<runtime::KernelTime> kernels;
  for (const auto& [key, kernel] : kernels_) kernels.push_back(kernel);
  return kernels;
}

}  // namespace

std::unique_ptr<runtime::LapTimer> MakeEventLapTimer(Context* context) {
  return std::make_unique<EventLapTimer>(context);
}

std::unique_ptr<runtime::LapTimer> MakeActivityLapTimer(Context* context, std::unique_ptr<KernelActivity> activity) {
  return std::make_unique<ActivityLapTimer>(context, std::move(activity));
}

std::unique_ptr<runtime::LapTimer> MakeLapTimer(Context* context) {
  absl::StatusOr<std::unique_ptr<KernelActivity>> activity = KernelActivity::Start();
  return activity.ok() ? MakeActivityLapTimer(context, *std::move(activity)) : MakeEventLapTimer(context);
}

}  // namespace ampd::cuda
