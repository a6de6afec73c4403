// What PlanJob answers, made without running anything.
#ifndef AMPD_ENGINE_TRAIN_PLAN_REPORT_H_
#define AMPD_ENGINE_TRAIN_PLAN_REPORT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/plan.pb.h"
#include "engine/models/model.h"
#include "engine/train/plan_costs.h"
#include "engine/train/planned_model.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// Plans one job, and variations of it, for one kind of device: of a CPU with the backend that would run it, of a GPU
// with the sizing backend, or with its libraries' plans. Keeps no state between calls. `model` outlives it.
class DevicePlanner {
 public:
  DevicePlanner(models::SampleInfo sample, const v1::DeviceModel* model) : sample_(std::move(sample)), model_(model) {}

  // Errors are PlanModel's.
  absl::StatusOr<std::unique_ptr<PlannedModel>> Plan(const ResolvedJobSpec& spec) const;
  // Of a GPU, with workspace and joined steps as CudaPlanLibrary() has plans for them, and slower. Errors are
  // MakeCudaPlanner's and PlanModel's.
  absl::StatusOr<std::unique_ptr<PlannedModel>> PlanByLibrary(const ResolvedJobSpec& spec) const;
  StepCosts Costs(const ResolvedJobSpec& spec, const PlannedModel& planned) const {
    return CostsOf(spec, planned, *model_);
  }
  const v1::DeviceModel& model() const { return *model_; }

 private:
  const models::SampleInfo sample_;
  const v1::DeviceModel* const model_;
};

// Memory of a planned model as v1::ModeEstimate splits it; the other fields of `estimate` stay as they are. What a
// driver and its libraries take for themselves is in none of them.
void FillMemory(const PlannedModel& planned, v1::ModeEstimate* estimate);
int64_t TotalBytes(const PlannedModel& planned);

// The largest batch (in one piece: train.batch_size and train.micro_batch_size) of `spec` whose total fits
// model().memory_bytes; 0 where 1 does not, where the memory is not known, or where the plan at `spec`'s own batch
// fails. What is returned was planned and fits; where few plans did not settle it, it may not be the very largest.
int64_t LargestBatch(const DevicePlanner& planner, const ResolvedJobSpec& spec);

// The samples of a micro-batch, and of the whole batch where they are the same, changed to `batch`.
absl::StatusOr<ResolvedJobSpec> WithBatch(const ResolvedJobSpec& spec, int64_t batch);

// The report but for spec, plan and device model, which the caller has. `modes`: compared with FP32; empty: all. A job
// of mode AUTO is described in the fastest of them. Errors are PlanModel's for the job as it is; what a mode cannot do
// is in its estimate. Equal arguments give equal reports.
absl::StatusOr<v1::PlanReport> MakePlanReport(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                              const v1::DeviceModel& model,
                                              const std::vector<v1::PrecisionSpec::Mode>& modes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLAN_REPORT_H_
