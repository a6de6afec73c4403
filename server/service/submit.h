// What stands between a submitted spec and a job: resolving, path rules and planning.
#ifndef AMPD_SERVER_SERVICE_SUBMIT_H_
#define AMPD_SERVER_SERVICE_SUBMIT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "proto/spec/device_models.h"
#include "server/jobs/controller.h"
#include "server/service/work_pool.h"

namespace ampd {

// Thread safe.
class Submitter {
 public:
  // What a model needs; RunPlanProcess in the daemon.
  using Planner = std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)>;

  struct Options {
    std::vector<std::string> data_roots;
    // What jobs run on; a job that none of them can run is refused. Conditions that pass do not count.
    std::vector<v1::Device> devices;
    // What plans are made for.
    std::vector<v1::DeviceModel> device_models = BuiltInDeviceModels();
    // Of a serialized spec.
    int64_t max_spec_bytes = 1 << 20;
    // Of jobs that name none.
    v1::PrecisionSpec::Mode default_precision_mode = v1::PrecisionSpec::FP32;
    // Planned at once; up to max_waiting more wait their turn.
    int planners = 2;
    size_t max_waiting = 64;
  };

  // `controller` outlives this.
  Submitter(Options options, Planner planner, Controller* controller);

  // TrainingService.CreateJob; `done` is called once, on any thread. `request` is not used after the call returns.
  void Create(const v1::CreateJobRequest& request, Controller::Done<v1::Job> done);

  // TrainingService.PlanJob; as Create().
  void PlanReport(const v1::PlanJobRequest& request, Controller::Done<v1::PlanReport> done);

 private:
  struct Submission;

  void PlanLater(Submission submission);
  void Plan(Submission submission);
  absl::StatusOr<v1::JobSpec> Resolve(v1::JobSpec spec) const;
  // For a plan of the resolved `spec`; what it does not know of the kind, a device of it tells.
  absl::StatusOr<v1::DeviceModel> ModelFor(const std::string& name, const v1::JobSpec& spec) const;
  absl::StatusOr<v1::PlanReport> Report(const v1::PlanJobRequest& request) const;

  const Options options_;
  const Planner planner_;
  Controller* const controller_;
  // Last: its threads use the rest.
  WorkPool pool_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_SUBMIT_H_
