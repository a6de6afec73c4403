// What stands between a submitted spec and a job: resolving, path rules and planning.
#ifndef AMPD_SERVER_SERVICE_SUBMIT_H_
#define AMPD_SERVER_SERVICE_SUBMIT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "proto/spec/device_models.h"
#include "server/auth/caller.h"
#include "server/events/clock.h"
#include "server/files/file_sharing.h"
#include "server/jobs/controller.h"
#include "server/jobs/start_folders.h"
#include "server/service/dataset_store.h"
#include "server/service/plan_cache.h"
#include "server/service/start_source.h"
#include "server/service/step_pool.h"
#include "server/service/upload_store.h"
#include "server/service/user_limits.h"
#include "server/service/work_pool.h"

namespace ampd {

// Thread safe.
class Submitter {
 public:
  // What a model needs; RunPlanProcess in the daemon.
  using Planner = std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)>;

  struct Options {
    std::vector<std::string> data_roots;
    // As ControllerOptions'.
    std::string checkpoint_root;
    std::string mirror_root;
    std::string start_root;
    // Outlives the submitter; null: nothing was ever uploaded.
    UploadStore* uploads = nullptr;
    // Likewise of datasets.
    DatasetStore* datasets = nullptr;
    // What jobs run on; a job that none of them can run is refused. Conditions that pass do not count.
    std::vector<v1::Device> devices;
    // A job that is beyond them is refused.
    UserLimits user_limits;
    // What plans are made for.
    std::vector<v1::DeviceModel> device_models = BuiltInDeviceModels();
    // Of a serialized spec.
    int64_t max_spec_bytes = 1 << 20;
    // Of jobs that name none.
    v1::PrecisionSpec::Mode default_precision_mode = v1::PrecisionSpec::FP32;
    // Planned at once; up to max_waiting more wait their turn. Submits whose plan is known need no planner.
    int planners = 2;
    size_t max_waiting = 64;
    // Submits that wait to be resolved, and sweeps of one user that are not made yet.
    size_t max_submits = 4096;
    size_t max_sweeps = 16;
    // Of the resolved specs and plans of a sweep's jobs together.
    int64_t max_sweep_bytes = int64_t{64} << 20;
    // See PlanCache.
    PlanCache::Options plans;
    const Clock* clock = &SystemClock();
    // Let them read what jobs start from.
    FileSharing workers;
  };

  // `controller` outlives this.
  Submitter(Options options, Planner planner, Controller* controller);

  // TrainingService.CreateJob; `done` is called once, on any thread. `request` is not used after the call returns. The
  // job is the caller's; other jobs that it names must be, or the caller an administrator. `cancelled` is asked, on any
  // thread and until `done` is called, whether the caller is gone: then nothing is begun any more.
  void Create(const v1::CreateJobRequest& request, const Caller& caller, std::function<bool()> cancelled,
              Controller::Done<v1::Job> done);

  // TrainingService.RetryJob of a job that the caller may change; as Create(). Weights of another job that the job
  // starts from are held for it anew.
  void Retry(const std::string& job_id, const Caller& caller, Controller::Done<v1::Job> done);
  // TrainingService.CreateSweep; as Create().
  void CreateSweep(const v1::CreateSweepRequest& request, const Caller& caller, std::function<bool()> cancelled,
                   Controller::Done<v1::JobSweep> done);

  // TrainingService.PlanJob; as Create().
  void PlanReport(const v1::PlanJobRequest& request, const Caller& caller, std::function<bool()> cancelled,
                  Controller::Done<v1::PlanReport> done);

 private:
  struct Submission;
  struct SweepSubmission;
  struct PlanSubmission;
  // What points of a sweep start from, by what they ask for: chosen, held and compared for the first of them alone.
  struct SweepStart {
    v1::WeightSource found;
    std::shared_ptr<HeldWeights> held;
  };
  using SweepStarts = std::map<std::string, SweepStart>;

  // Where a job that is to be submitted, or planned, is resolved.
  WorkPool& ResolversFor(const v1::JobSpec& spec);
  // Of what planners do.
  absl::Status TooManyWait() const;
  void ResolveLater(std::shared_ptr<Submission> submission);
  void Plan(std::shared_ptr<Submission> submission);
  void Finish(Submission submission, CreateJobParams params);
  // submit_sweep.cc
  void PlanSweepLater(std::shared_ptr<SweepSubmission> submission);
  // A turn of it: plans its next point, and finishes it where that was the last one. Whether there are more.
  bool PlanSweep(SweepSubmission& submission);
  absl::Status PlanNextPoint(SweepSubmission& submission);
  void FinishSweep(SweepSubmission& submission);
  absl::StatusOr<CreateJobParams> PlanPoint(v1::JobSpec asked, SweepSubmission& submission);
  absl::StatusOr<v1::JobSpec> Resolve(v1::JobSpec spec) const;
  // What the planner is asked of a spec: resolved, its files found, the checkpoint it starts from chosen and held.
  struct Prepared {
    v1::PlanRequest request;
    std::shared_ptr<HeldWeights> start;
    // Until the job is there.
    std::shared_ptr<DatasetStore::Hold> datasets;
  };
  // Jobs that it names must be the caller's. `starts` of its sweep; null: it is of none.
  absl::StatusOr<Prepared> Prepare(v1::JobSpec spec, const Caller& caller, SweepStarts* starts) const;
  // Of a job to create.
  absl::StatusOr<Prepared> PrepareJob(v1::JobSpec spec, const Caller& caller, SweepStarts* starts) const;
  // All but the request's own of it; the plan has what there is to warn of.
  absl::StatusOr<CreateJobParams> ParamsOf(Prepared prepared, absl::StatusOr<v1::PlanResponse> response) const;
  // Waits for the controller.
  absl::StatusOr<v1::Job> FindJob(const std::string& id, const Owner& owner) const;
  // Makes whole ids of `after` or `after_ok`.
  absl::Status FindDependencies(const std::string& field, const Owner& owner,
                                google::protobuf::RepeatedPtrField<std::string>* ids) const;
  // As HoldStart; UNAVAILABLE once the server drains.
  absl::StatusOr<std::shared_ptr<HeldWeights>> Hold(const JobFinder& find, v1::WeightSource* source) const;
  // The same for a point of a sweep, with links to what is held for an earlier one.
  absl::StatusOr<std::shared_ptr<HeldWeights>> HoldForPoint(const JobFinder& find, SweepStarts* starts,
                                                            v1::WeightSource* source) const;
  // Null where the job needs none.
  absl::StatusOr<std::shared_ptr<HeldWeights>> HoldAgain(const v1::Job& job) const;
  // For a plan of the resolved `spec`; what it does not know of the kind, a device of it tells.
  absl::StatusOr<v1::DeviceModel> ModelFor(const std::string& name, const v1::JobSpec& spec) const;
  // Asks the planner.
  absl::StatusOr<v1::PlanReport> Report(const v1::PlanJobRequest& asked, Prepared prepared) const;
  // On a thread that may read all of the weights.
  void RetryFound(const v1::Job& job, const Caller& caller, const Controller::Done<v1::Job>& done);

  const Options options_;
  const Planner planner_;
  Controller* const controller_;
  const StartFolders starts_;
  PlanCache plans_;
  // Last: their threads use the rest, each those before it. Planners; what resolves; what resolves with another job's
  // weights, all of which are read; what makes sweeps.
  WorkPool pool_;
  WorkPool resolvers_;
  WorkPool weight_resolvers_;
  StepPool sweeps_;
};

// What planning and training look for data in: the data roots, and the folder of uploaded datasets.
// Null: none was ever uploaded.
std::vector<std::string> AllDataRoots(std::vector<std::string> data_roots, const DatasetStore* datasets);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_SUBMIT_H_
