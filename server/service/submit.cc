#include "server/service/submit.h"

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "proto/spec/data_parts.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/resolve.h"
#include "server/scheduling/capability.h"
#include "server/service/checkpoint_copies.h"
#include "server/service/data_paths.h"
#include "server/service/dataset_use.h"
#include "server/service/deterministic_bytes.h"
#include "server/service/start_source.h"
#include "server/service/submit_warnings.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestIdBytes = 200;
constexpr int kResolvers = 2;
// For what finds too many in line.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

// What is planned for where no device of a known kind could run the job.
constexpr char kModelWithoutDevice[] = "H100-SXM";

absl::Status PlanErrors(const v1::PlanResponse& response) {
  if (response.errors().empty()) return absl::OkStatus();
  std::vector<FieldViolation> violations;
  for (const v1::FieldError& error : response.errors()) violations.push_back({error.field(), error.description()});
  return InvalidFields(violations);
}

absl::Status CallerGone() { return absl::CancelledError("the caller has gone away"); }

// Of a job that is to be retried, whose datasets cannot be held.
absl::Status Gone(const std::string& job_id, const absl::Status& violations) {
  if (!absl::IsInvalidArgument(violations)) return violations;
  std::vector<std::string> texts;
  for (const FieldViolation& violation : FieldViolationsOf(violations)) texts.push_back(violation.description);
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_id, " cannot read its data any more: ", absl::StrJoin(texts, "; ")));
}

}  // namespace

std::vector<std::string> AllDataRoots(std::vector<std::string> data_roots, const DatasetStore* datasets) {
  if (datasets != nullptr) data_roots.push_back(DatasetRoot(datasets->folder()));
  return data_roots;
}

struct Submitter::Submission {
  v1::CreateJobRequest request;
  Caller caller;
  std::string body;
  std::function<bool()> cancelled;
  Controller::Done<v1::Job> done;
};

struct Submitter::PlanSubmission {
  v1::PlanJobRequest request;
  Caller caller;
  Prepared prepared;
  std::function<bool()> cancelled;
  Controller::Done<v1::PlanReport> done;
};

Submitter::Submitter(Options options, Planner planner, Controller* controller)
    : options_(std::move(options)),
      planner_(std::move(planner)),
      controller_(controller),
      starts_(options_.start_root, options_.workers),
      plans_(options_.plans, planner_, &pool_, options_.clock),
      pool_(options_.planners, options_.max_waiting),
      resolvers_(kResolvers, options_.max_submits),
      weight_resolvers_(kResolvers, options_.max_submits),
      sweeps_({.per_user = options_.max_sweeps}) {}

void Submitter::Create(const v1::CreateJobRequest& request, const Caller& caller, std::function<bool()> cancelled,
                       Controller::Done<v1::Job> done) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return done(InvalidFields({{"request_id", absl::StrCat("longer than ", kMaxRequestIdBytes, " bytes")}}));
  }
  auto submission = std::make_shared<Submission>(
      Submission{request, caller, DeterministicBytes(request.spec()), std::move(cancelled), std::move(done)});
  if (request.request_id().empty() || request.validate_only()) return ResolveLater(std::move(submission));
  controller_->FindRequest(caller.user, request.request_id(), submission->body,
                           [this, submission](absl::StatusOr<std::optional<v1::Job>> found) {
                             if (!found.ok()) return submission->done(found.status());
                             if (*found) return submission->done(**std::move(found));
                             ResolveLater(submission);
                           });
}

void Submitter::ResolveLater(std::shared_ptr<Submission> submission) {
  if (controller_->draining() && !submission->request.validate_only()) {
    return submission->done(absl::UnavailableError("the server is shutting down"));
  }
  if (ResolversFor(submission->request.spec()).Post([this, submission] { Plan(submission); })) return;
  submission->done(TryAgain(absl::StrCat(options_.max_submits, " submits wait already; try again"), kRetryDelay));
}

void Submitter::Plan(std::shared_ptr<Submission> submission) {
  if (submission->cancelled()) return submission->done(CallerGone());
  absl::StatusOr<Prepared> prepared =
      PrepareJob(std::move(*submission->request.mutable_spec()), submission->caller, nullptr);
  if (!prepared.ok()) return submission->done(prepared.status());
  auto shared = std::make_shared<Prepared>(*std::move(prepared));
  plans_.Plan(shared->request, [this, submission, shared](absl::StatusOr<v1::PlanResponse> response) {
    absl::StatusOr<CreateJobParams> params = ParamsOf(std::move(*shared), std::move(response));
    if (!params.ok()) return submission->done(params.status());
    Finish(std::move(*submission), *std::move(params));
  });
}

void Submitter::Finish(Submission submission, CreateJobParams params) {
  if (submission.request.validate_only()) {
    // Let go before the answer: who has it finds nothing held.
    params.start.reset();
    params.held.reset();
    v1::Job job;
    *job.mutable_spec() = std::move(params.spec);
    *job.mutable_plan() = std::move(params.plan);
    return submission.done(std::move(job));
  }
  params.user = submission.caller.user;
  params.request_id = submission.request.request_id();
  params.body = std::move(submission.body);
  controller_->CreateJob(std::move(params), std::move(submission.done));
}

absl::StatusOr<std::shared_ptr<HeldWeights>> Submitter::Hold(const JobFinder& find, v1::WeightSource* source) const {
  // Reading large weights may take longer than a daemon that drains has; plans and validations are of no use then.
  absl::StatusOr<std::shared_ptr<HeldWeights>> held =
      HoldStart(find, {options_.checkpoint_root, options_.mirror_root}, starts_, source,
                [this] { return controller_->draining(); });
  if (absl::IsCancelled(held.status())) return absl::UnavailableError("the server is shutting down");
  return held;
}

absl::StatusOr<std::shared_ptr<HeldWeights>> Submitter::HoldForPoint(const JobFinder& find, SweepStarts* starts,
                                                                     v1::WeightSource* source) const {
  const std::string asked = DeterministicBytes(*source);
  if (const auto known = starts->find(asked); known != starts->end()) {
    const auto& [found, held] = known->second;
    *source = found;
    // What is held was compared, and cannot change any more.
    return starts_.Hold(held->folder(), held->checkpoint(),
                        found.continue_training() ? HeldFiles::kAll : HeldFiles::kWeights);
  }
  AMPD_ASSIGN_OR_RETURN(std::shared_ptr<HeldWeights> held, Hold(find, source));
  (*starts)[asked] = {*source, held};
  return held;
}

absl::StatusOr<std::shared_ptr<HeldWeights>> Submitter::HoldAgain(const v1::Job& job) const {
  if (!job.spec().start_from().has_job_id()) return nullptr;
  v1::WeightSource source = job.spec().start_from();
  // That it may start from there was found when it was submitted.
  absl::StatusOr<std::shared_ptr<HeldWeights>> held =
      Hold([this](const std::string& id) { return FindJob(id, std::nullopt); }, &source);
  if (held.ok() || controller_->draining()) return held;
  // One that goes on from a checkpoint of its own reads them no more.
  const CheckpointFolders folders = FoldersOfJob(options_.checkpoint_root, options_.mirror_root, job.id(), "");
  const bool none_left =
      NewestFirst(folders, false).empty() && (folders.mirror.empty() || NewestFirst(folders, true).empty());
  if (!none_left) return nullptr;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " has no checkpoint, and what it starts from is gone: ", held.status().message()));
}

void Submitter::Retry(const std::string& job_id, const Caller& caller, Controller::Done<v1::Job> done) {
  controller_->GetJob(
      job_id,
      [this, caller, done = std::move(done)](absl::StatusOr<v1::Job> job) {
        if (!job.ok()) return done(job.status());
        WorkPool& pool = job->spec().start_from().has_job_id() ? weight_resolvers_ : pool_;
        if (!pool.Post([this, caller, done, job = *job] { RetryFound(job, caller, done); })) done(TooManyWait());
      },
      std::nullopt);
}

void Submitter::RetryFound(const v1::Job& job, const Caller& caller, const Controller::Done<v1::Job>& done) {
  // They may have been others when it was submitted, and an administrator may have raised its priority since.
  const absl::Status limits = CheckUserLimits(job.spec(), caller, options_.user_limits);
  if (!limits.ok()) return done(absl::FailedPreconditionError(limits.message()));
  absl::StatusOr<std::shared_ptr<HeldWeights>> start = HoldAgain(job);
  if (!start.ok()) return done(start.status());
  const absl::Status uploads = CheckUploads(job.spec(), options_.uploads);
  if (!uploads.ok()) return done(Gone(job.id(), uploads));
  absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> datasets = HoldDatasets(job.spec(), options_.datasets);
  if (!datasets.ok()) return done(Gone(job.id(), datasets.status()));
  RetryJobParams params{.job_id = job.id(), .start = *std::move(start)};
  if (*datasets != nullptr) params.datasets = (*datasets)->contents();
  params.held = *std::move(datasets);
  controller_->RetryJob(std::move(params), done);
}

void Submitter::PlanReport(const v1::PlanJobRequest& request, const Caller& caller, std::function<bool()> cancelled,
                           Controller::Done<v1::PlanReport> done) {
  auto asked =
      std::make_shared<PlanSubmission>(PlanSubmission{request, caller, {}, std::move(cancelled), std::move(done)});
  const bool posted = ResolversFor(request.spec()).Post([this, asked] {
    if (asked->cancelled()) return asked->done(CallerGone());
    absl::StatusOr<Prepared> prepared = Prepare(asked->request.spec(), asked->caller, nullptr);
    if (!prepared.ok()) return asked->done(prepared.status());
    asked->prepared = *std::move(prepared);
    const bool planned = pool_.Post([this, asked] {
      if (asked->cancelled()) {
        asked->prepared = {};
        return asked->done(CallerGone());
      }
      // What it holds is let go before the answer.
      absl::StatusOr<v1::PlanReport> report = Report(asked->request, std::exchange(asked->prepared, {}));
      asked->done(std::move(report));
    });
    if (!planned) asked->done(TooManyWait());
  });
  if (!posted) asked->done(TooManyWait());
}

absl::Status Submitter::TooManyWait() const {
  return TryAgain(absl::StrCat(options_.max_waiting, " submits wait already; try again"), kRetryDelay);
}

WorkPool& Submitter::ResolversFor(const v1::JobSpec& spec) {
  return spec.start_from().has_job_id() ? weight_resolvers_ : resolvers_;
}

absl::StatusOr<v1::DeviceModel> Submitter::ModelFor(const std::string& name, const v1::JobSpec& spec) const {
  const std::vector<v1::DeviceModel>& models = options_.device_models;
  const v1::DeviceModel* found = name.empty() ? nullptr : FindDeviceModel(models, name);
  if (!name.empty() && found == nullptr) {
    std::vector<std::string> names;
    for (const v1::DeviceModel& model : models) names.push_back(model.name());
    return InvalidFields({{"device_model", absl::StrCat("no kind of device is called '", name, "'; there are ",
                                                        absl::StrJoin(names, ", "))}});
  }
  for (const v1::Device& device : options_.devices) {
    const v1::DeviceModel* model = ModelOfDevice(models, device);
    if (model == nullptr || (found != nullptr && found != model) || (found == nullptr && !CanRun(spec, device)))
      continue;
    v1::DeviceModel known = *model;
    if (known.memory_bytes() == 0) known.set_memory_bytes(device.memory_total_bytes());
    return known;
  }
  if (found == nullptr) found = FindDeviceModel(models, kModelWithoutDevice);
  return *found;
}

absl::StatusOr<v1::PlanReport> Submitter::Report(const v1::PlanJobRequest& asked, Prepared prepared) const {
  v1::PlanRequest& request = prepared.request;
  AMPD_ASSIGN_OR_RETURN(*request.mutable_device_model(), ModelFor(asked.device_model(), request.spec()));
  *request.mutable_modes() = asked.modes();
  AMPD_ASSIGN_OR_RETURN(v1::PlanResponse response, planner_(request));
  AMPD_RETURN_IF_ERROR(PlanErrors(response));
  // Of data for evaluation nothing need be known.
  if (!response.has_report()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the data could not be read, so that the model's shapes are not known: ", response.data_error()));
  }
  // What fits the kind of device that is asked about the report tells.
  const std::vector<std::string> warnings = SubmitWarnings(request.spec(), response, {});
  v1::PlanReport report = std::move(*response.mutable_report());
  *report.mutable_spec() = std::move(*request.mutable_spec());
  *report.mutable_plan() = std::move(*response.mutable_plan());
  report.mutable_plan()->mutable_warnings()->Add(warnings.begin(), warnings.end());
  *report.mutable_device_model() = std::move(*request.mutable_device_model());
  return report;
}

absl::StatusOr<v1::JobSpec> Submitter::Resolve(v1::JobSpec spec) const {
  const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes > options_.max_spec_bytes) {
    return InvalidFields({{"spec", absl::StrCat("has ", bytes, " bytes; this server takes at most ",
                                                options_.max_spec_bytes, " (max_spec_bytes)")}});
  }
  if (spec.precision().mode() == v1::PrecisionSpec::MODE_UNSPECIFIED) {
    spec.mutable_precision()->set_mode(options_.default_precision_mode);
  }
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec resolved, ResolveJobSpec(std::move(spec)));
  AMPD_RETURN_IF_ERROR(CheckDataParts(resolved.proto().data(), options_.data_roots));
  AMPD_RETURN_IF_ERROR(CheckDataPaths(resolved.proto(), options_.data_roots));
  return resolved.proto();
}

absl::StatusOr<v1::Job> Submitter::FindJob(const std::string& id, const Owner& owner) const {
  auto found = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
  controller_->GetJob(
      id, [found](absl::StatusOr<v1::Job> job) { found->set_value(std::move(job)); }, owner);
  return found->get_future().get();
}

absl::Status Submitter::FindDependencies(const std::string& field, const Owner& owner,
                                         google::protobuf::RepeatedPtrField<std::string>* ids) const {
  for (int i = 0; i < ids->size(); ++i) {
    const absl::StatusOr<v1::Job> job = FindJob(ids->Get(i), owner);
    if (!job.ok()) {
      if (job.status().code() != absl::StatusCode::kNotFound &&
          job.status().code() != absl::StatusCode::kInvalidArgument) {
        return job.status();
      }
      return InvalidFields({{absl::StrCat(field, "[", i, "]"), std::string(job.status().message())}});
    }
    const v1::Job::State state = job->state();
    if (field == "after_ok" && (state == v1::Job::FAILED || state == v1::Job::CANCELLED)) {
      return InvalidFields(
          {{absl::StrCat(field, "[", i, "]"), absl::StrCat("job ", job->id(), " ended ", v1::Job::State_Name(state))}});
    }
    *ids->Mutable(i) = job->id();
  }
  return absl::OkStatus();
}

absl::StatusOr<Submitter::Prepared> Submitter::Prepare(v1::JobSpec spec, const Caller& caller,
                                                       SweepStarts* starts) const {
  Prepared prepared;
  v1::PlanRequest& request = prepared.request;
  AMPD_ASSIGN_OR_RETURN(*request.mutable_spec(), Resolve(std::move(spec)));
  AMPD_RETURN_IF_ERROR(CheckUserLimits(request.spec(), caller, options_.user_limits));
  AMPD_RETURN_IF_ERROR(CheckUploads(request.spec(), options_.uploads));
  AMPD_ASSIGN_OR_RETURN(prepared.datasets, HoldDatasets(request.spec(), options_.datasets));
  for (const std::string& root : AllDataRoots(options_.data_roots, options_.datasets)) request.add_data_roots(root);
  if (options_.uploads != nullptr) request.set_upload_dir(options_.uploads->folder());
  const Owner owner = caller.Scope();
  AMPD_RETURN_IF_ERROR(FindDependencies("after", owner, request.mutable_spec()->mutable_after()));
  AMPD_RETURN_IF_ERROR(FindDependencies("after_ok", owner, request.mutable_spec()->mutable_after_ok()));
  if (!request.spec().start_from().has_job_id()) return prepared;
  const JobFinder find = [this, &owner](const std::string& id) { return FindJob(id, owner); };
  v1::WeightSource* source = request.mutable_spec()->mutable_start_from();
  AMPD_ASSIGN_OR_RETURN(prepared.start, starts == nullptr ? Hold(find, source) : HoldForPoint(find, starts, source));
  request.set_start_checkpoint_dir(prepared.start->checkpoint_dir());
  return prepared;
}

absl::StatusOr<Submitter::Prepared> Submitter::PrepareJob(v1::JobSpec spec, const Caller& caller,
                                                          SweepStarts* starts) const {
  AMPD_ASSIGN_OR_RETURN(Prepared prepared, Prepare(std::move(spec), caller, starts));
  AMPD_RETURN_IF_ERROR(CheckDevices(prepared.request.spec(), options_.devices));
  AMPD_RETURN_IF_ERROR(CheckPrices(prepared.request.spec(), options_.devices, options_.device_models));
  return prepared;
}

absl::StatusOr<CreateJobParams> Submitter::ParamsOf(Prepared prepared,
                                                    absl::StatusOr<v1::PlanResponse> response) const {
  AMPD_RETURN_IF_ERROR(response.status());
  AMPD_RETURN_IF_ERROR(PlanErrors(*response));
  CreateJobParams params;
  params.spec = std::move(*prepared.request.mutable_spec());
  const std::vector<std::string> warnings = SubmitWarnings(params.spec, *response, options_.devices);
  params.plan = std::move(*response->mutable_plan());
  params.plan.mutable_warnings()->Add(warnings.begin(), warnings.end());
  params.start = std::move(prepared.start);
  if (prepared.datasets != nullptr) params.datasets = prepared.datasets->contents();
  params.held = std::move(prepared.datasets);
  return params;
}

}  // namespace ampd
