#include "engine/backend/cuda/lap_timer.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/handles.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr size_t kNoPart = SIZE_MAX;

class EventLapTimer : public runtime::LapTimer {
 public:
  EventLapTimer(Context* context, std::string note) : context_(context), note_(std::move(note)) {}

  runtime::LapTiming timing() const override { return runtime::LapTiming::kDeviceEvents; }
  absl::Status Start() override { return Mark(kNoPart); }
  absl::Status Lap(size_t part) override { return Mark(part); }
  absl::Status Wait() override { return context_->Wait(); }
  absl::Status Collect(absl::Span<double> seconds) override;
  std::string note() const override { return note_; }

 private:
  // What ended at an event.
  struct Marked {
    EventHandle event;
    size_t part = kNoPart;
  };
  absl::Status Mark(size_t part);

  Context* const context_;
  const std::string note_;
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
    return activity_->SetId(collected_ + parts_.size());
  }
  absl::Status Lap(size_t part) override {
    if (!parts_.empty()) parts_.back() = part;
    return Start();
  }
  absl::Status Wait() override { return context_->Wait(); }
  absl::Status Collect(absl::Span<double> seconds) override;
  std::vector<runtime::KernelTime> Kernels() const override;

 private:
  Context* const context_;
  const std::unique_ptr<KernelActivity> activity_;
  // Of the laps since the last Collect(); the id of parts_[i] is collected_ + i + 1.
  std::vector<size_t> parts_;
  uint64_t collected_ = 0;
  // By name and part.
  std::map<std::pair<std::string, size_t>, runtime::KernelTime> kernels_;
};

absl::Status ActivityLapTimer::Collect(absl::Span<double> seconds) {
  AMPD_RETURN_IF_ERROR(activity_->SetId(0));
  AMPD_ASSIGN_OR_RETURN(std::vector<ActivityRecord> records, activity_->Take());
  for (ActivityRecord& record : records) {
    const bool known = record.id > collected_ && record.id <= collected_ + parts_.size();
    const size_t part = known ? parts_[record.id - collected_ - 1] : kNoPart;
    if (part == kNoPart) continue;
    seconds[part] += record.seconds;
    runtime::KernelTime& kernel = kernels_[{record.name, part}];
    kernel.name = std::move(record.name);
    kernel.part = part;
    ++kernel.calls;
    kernel.seconds += record.seconds;
  }
  collected_ += parts_.size();
  parts_.clear();
  return absl::OkStatus();
}

std::vector<runtime::KernelTime> ActivityLapTimer::Kernels() const {
  std::vector<runtime::KernelTime> kernels;
  for (const auto& [key, kernel] : kernels_) kernels.push_back(kernel);
  return kernels;
}

}  // namespace

std::unique_ptr<runtime::LapTimer> MakeEventLapTimer(Context* context, std::string note) {
  return std::make_unique<EventLapTimer>(context, std::move(note));
}

std::unique_ptr<runtime::LapTimer> MakeActivityLapTimer(Context* context, std::unique_ptr<KernelActivity> activity) {
  return std::make_unique<ActivityLapTimer>(context, std::move(activity));
}

std::unique_ptr<runtime::LapTimer> MakeLapTimer(Context* context, bool kernels) {
  if (!kernels) return MakeEventLapTimer(context);
  absl::StatusOr<std::unique_ptr<KernelActivity>> activity = KernelActivity::Start();
  if (activity.ok()) return MakeActivityLapTimer(context, *std::move(activity));
  return MakeEventLapTimer(context, absl::StrCat("no kernels by name: ", activity.status().message()));
}

}  // namespace ampd::cuda
