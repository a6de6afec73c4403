#include "server/service/submit.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/scheduling/capability.h"
#include "server/service/data_paths.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestIdBytes = 200;

// What is planned for where no device of a known kind could run the job.
constexpr char kModelWithoutDevice[] = "H100-SXM";

// Maps have no order on the wire otherwise, and equal requests must compare equal.
std::string SerializeDeterministically(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status PlanErrors(const v1::PlanResponse& response) {
  if (response.errors().empty()) return absl::OkStatus();
  std::vector<FieldViolation> violations;
  for (const v1::FieldError& error : response.errors()) violations.push_back({error.field(), error.description()});
  return InvalidFields(violations);
}

}  // namespace

struct Submitter::Submission {
  v1::CreateJobRequest request;
  std::string body;
  Controller::Done<v1::Job> done;
};

Submitter::Submitter(Options options, Planner planner, Controller* controller)
    : options_(std::move(options)),
      planner_(std::move(planner)),
      controller_(controller),
      pool_(options_.planners, options_.max_waiting) {}

void Submitter::Create(const v1::CreateJobRequest& request, Controller::Done<v1::Job> done) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return done(InvalidFields({{"request_id", absl::StrCat("longer than ", kMaxRequestIdBytes, " bytes")}}));
  }
  auto submission =
      std::make_shared<Submission>(Submission{request, SerializeDeterministically(request.spec()), std::move(done)});
  if (request.request_id().empty() || request.validate_only()) return PlanLater(std::move(*submission));
  controller_->FindRequest(request.request_id(), submission->body,
                           [this, submission](absl::StatusOr<std::optional<v1::Job>> found) {
                             if (!found.ok()) return submission->done(found.status());
                             if (*found) return submission->done(**std::move(found));
                             PlanLater(std::move(*submission));
                           });
}

void Submitter::PlanLater(Submission submission) {
  if (controller_->draining() && !submission.request.validate_only()) {
    return submission.done(absl::UnavailableError("the server is shutting down"));
  }
  auto shared = std::make_shared<Submission>(std::move(submission));
  if (pool_.Post([this, shared] { Plan(std::move(*shared)); })) return;
  shared->done(absl::UnavailableError(absl::StrCat(options_.max_waiting, " submits wait already; try again")));
}

void Submitter::PlanReport(const v1::PlanJobRequest& request, Controller::Done<v1::PlanReport> done) {
  auto shared = std::make_shared<std::pair<v1::PlanJobRequest, Controller::Done<v1::PlanReport>>>(request, done);
  if (pool_.Post([this, shared] { shared->second(Report(shared->first)); })) return;
  done(absl::UnavailableError(absl::StrCat(options_.max_waiting, " submits wait already; try again")));
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

absl::StatusOr<v1::PlanReport> Submitter::Report(const v1::PlanJobRequest& asked) const {
  v1::PlanRequest request;
  AMPD_ASSIGN_OR_RETURN(*request.mutable_spec(), Resolve(asked.spec()));
  AMPD_ASSIGN_OR_RETURN(*request.mutable_device_model(), ModelFor(asked.device_model(), request.spec()));
  for (const std::string& root : options_.data_roots) request.add_data_roots(root);
  *request.mutable_modes() = asked.modes();
  AMPD_ASSIGN_OR_RETURN(v1::PlanResponse response, planner_(request));
  AMPD_RETURN_IF_ERROR(PlanErrors(response));
  // Of data for evaluation nothing need be known.
  if (!response.has_report()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the data could not be read, so that the model's shapes are not known: ", response.data_error()));
  }
  v1::PlanReport report = std::move(*response.mutable_report());
  *report.mutable_spec() = std::move(*request.mutable_spec());
  *report.mutable_plan() = std::move(*response.mutable_plan());
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
  AMPD_RETURN_IF_ERROR(CheckDataPaths(resolved.proto(), options_.data_roots));
  return resolved.proto();
}

void Submitter::Plan(Submission submission) {
  absl::StatusOr<v1::JobSpec> spec = Resolve(submission.request.spec());
  if (!spec.ok()) return submission.done(spec.status());
  if (absl::Status devices = CheckDevices(*spec, options_.devices); !devices.ok()) return submission.done(devices);
  v1::PlanRequest request;
  *request.mutable_spec() = *spec;
  for (const std::string& root : options_.data_roots) request.add_data_roots(root);
  absl::StatusOr<v1::PlanResponse> response = planner_(request);
  if (!response.ok()) return submission.done(response.status());
  if (absl::Status errors = PlanErrors(*response); !errors.ok()) return submission.done(errors);

  if (submission.request.validate_only()) {
    v1::Job job;
    *job.mutable_spec() = *std::move(spec);
    *job.mutable_plan() = std::move(*response->mutable_plan());
    return submission.done(std::move(job));
  }
  CreateJobParams params;
  params.spec = *std::move(spec);
  params.plan = std::move(*response->mutable_plan());
  params.request_id = submission.request.request_id();
  params.body = std::move(submission.body);
  controller_->CreateJob(std::move(params), std::move(submission.done));
}

}  // namespace ampd
