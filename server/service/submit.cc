#include "server/service/submit.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/scheduling/capability.h"
#include "server/service/data_paths.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestIdBytes = 200;

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

absl::StatusOr<v1::JobSpec> Submitter::Resolve(const v1::CreateJobRequest& request) const {
  const int64_t bytes = static_cast<int64_t>(request.spec().ByteSizeLong());
  if (bytes > options_.max_spec_bytes) {
    return InvalidFields({{"spec", absl::StrCat("has ", bytes, " bytes; this server takes at most ",
                                                options_.max_spec_bytes, " (max_spec_bytes)")}});
  }
  v1::JobSpec spec = request.spec();
  if (spec.precision().mode() == v1::PrecisionSpec::MODE_UNSPECIFIED) {
    spec.mutable_precision()->set_mode(options_.default_precision_mode);
  }
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec resolved, ResolveJobSpec(std::move(spec)));
  AMPD_RETURN_IF_ERROR(CheckDataPaths(resolved.proto(), options_.data_roots));
  AMPD_RETURN_IF_ERROR(CheckDevices(resolved.proto(), options_.devices));
  return resolved.proto();
}

void Submitter::Plan(Submission submission) {
  absl::StatusOr<v1::JobSpec> spec = Resolve(submission.request);
  if (!spec.ok()) return submission.done(spec.status());
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
