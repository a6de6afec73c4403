// What PlanJob answers, made without running anything.
#ifndef AMPD_ENGINE_TRAIN_PLAN_REPORT_H_
#define AMPD_ENGINE_TRAIN_PLAN_REPORT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/plan.pb.h"
#include "engine/models/model.h"
#include "engine/train/plan_costs.h"
#include "engine/train/planned_model.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// What a job loads on a device; with resources.gpus on each of them, by which the memory of one is judged.
struct DevicePlan {
  std::unique_ptr<PlannedModel> model;
  // The second model that looks at gradients; null without report.diagnostics_every_steps.
  std::unique_ptr<PlannedModel> diagnostics;
  // What both take of a CPU's memory besides: graphs and plans, and what the library describes and compiles kernels
  // with; BytesKeptBy. Of a GPU 0.
  int64_t kernel_bytes = 0;
};

// Plans one job, and variations of it, for one kind of device: of a CPU with the backend that would run it, of a GPU
// with the sizing backend, or with its libraries' plans. Keeps no state between calls. `model` and `lengths` outlive
// it. `samples`: of the training set; 0: not known. `lengths`: of each of them, where samples have lengths; empty: not
// known.
class DevicePlanner {
 public:
  DevicePlanner(models::SampleInfo sample, const v1::DeviceModel* model, int64_t samples = 0,
                absl::Span<const int32_t> lengths = {})
      : sample_(std::move(sample)), model_(model), samples_(samples), lengths_(lengths) {}

  // Errors are PlanModel's.
  absl::StatusOr<DevicePlan> Plan(const ResolvedJobSpec& spec) const;
  // Of a GPU, with workspace and joined steps as CudaPlanLibrary() has plans for them, and slower. Errors are
  // MakeCudaPlanner's and PlanModel's.
  absl::StatusOr<DevicePlan> PlanByLibrary(const ResolvedJobSpec& spec) const;
  // With length buckets and `lengths`, the mean of the first epoch's steps.
  StepCosts Costs(const ResolvedJobSpec& spec, const DevicePlan& plan) const;
  const v1::DeviceModel& model() const { return *model_; }
  // What a plan may take of model().memory_bytes, which must be known: of a GPU the process's own memory,
  // kProcessBytes, is left. >= 0.
  int64_t room_bytes() const;
  // Whether the training set is not known to hold less than a batch of `batch`, over all devices.
  bool CanFill(int64_t batch) const { return samples_ == 0 || batch <= samples_; }
  int64_t samples() const { return samples_; }

 private:
  // Of the batches of the first epoch; empty where they are not known.
  std::vector<double> BucketShares(const ResolvedJobSpec& spec) const;

  const models::SampleInfo sample_;
  const v1::DeviceModel* const model_;
  const int64_t samples_;
  const absl::Span<const int32_t> lengths_;
};

// Memory of a plan as v1::ModeEstimate splits it; the other fields of `estimate` stay as they are. What a driver and
// its libraries take for themselves is in none of them.
void FillMemory(const DevicePlan& plan, v1::ModeEstimate* estimate);
int64_t TotalBytes(const DevicePlan& plan);

// The largest batch of a device, as WithBatch() sets it, whose total fits room_bytes(); 0 where 1 does not (it was
// tried) or the memory is not known. What is returned was planned and fits; where few plans did not settle it, it may
// not be the very largest.
int64_t LargestBatch(const DevicePlanner& planner, const ResolvedJobSpec& spec);

// `spec` with `batch` samples for each of its devices, in one piece. Errors are ResolveJobSpec's.
absl::StatusOr<ResolvedJobSpec> WithBatch(const ResolvedJobSpec& spec, int64_t batch);

// The report but for spec, plan and device model, which the caller has. `modes`: compared with FP32; empty: all. A job
// of mode AUTO is described in the fastest of them. `samples` and `lengths` are DevicePlanner's: no batch is told that
// the set cannot fill. Errors are PlanModel's for the job as it is; what a mode cannot do is in its estimate. With
// resources.gpus figures are of one device and its share of the batch, but for prices. Equal arguments give equal
// reports.
absl::StatusOr<v1::PlanReport> MakePlanReport(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                              const v1::DeviceModel& model,
                                              const std::vector<v1::PrecisionSpec::Mode>& modes, int64_t samples = 0,
                                              absl::Span<const int32_t> lengths = {});

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLAN_REPORT_H_
