// What stands between a submitted sweep and its jobs.
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "proto/spec/sweep.h"
#include "server/service/deterministic_bytes.h"
#include "server/service/submit.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestIdBytes = 200;
// Points whose errors are told; a field that all of them have wrong would be told as often as there are points.
constexpr int kMaxBadPoints = 5;
// Sets its request's hash apart from that of a job with this spec.
constexpr char kBodyPrefix[] = "sweep:";

}  // namespace

struct Submitter::SweepSubmission {
  v1::CreateSweepRequest request;
  Caller caller;
  SweepExpansion points;
  std::string body;
  // Not asked after `done`.
  std::function<bool()> cancelled;
  Controller::Done<v1::JobSweep> done;
};

void Submitter::CreateSweep(const v1::CreateSweepRequest& request, const Caller& caller,
                            std::function<bool()> cancelled, Controller::Done<v1::JobSweep> done) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return done(InvalidFields({{"request_id", absl::StrCat("longer than ", kMaxRequestIdBytes, " bytes")}}));
  }
  if (!request.spec().has_sweep()) return done(InvalidFields({{"sweep", "required; CreateJob takes a spec without"}}));
  const int64_t bytes = static_cast<int64_t>(request.spec().ByteSizeLong());
  if (bytes > options_.max_spec_bytes) {
    return done(InvalidFields({{"spec", absl::StrCat("has ", bytes, " bytes; this server takes at most ",
                                                     options_.max_spec_bytes, " (max_spec_bytes)")}}));
  }
  absl::StatusOr<SweepExpansion> points = SweepExpansion::Of(request.spec());
  if (!points.ok()) return done(points.status());
  auto submission = std::make_shared<SweepSubmission>(SweepSubmission{
      request, caller, *std::move(points), absl::StrCat(kBodyPrefix, DeterministicBytes(request.spec())),
      std::move(cancelled), std::move(done)});
  if (request.request_id().empty() || request.validate_only()) return PlanSweepLater(std::move(submission));
  controller_->FindRequest(caller.user, request.request_id(), submission->body,
                           [this, submission](absl::StatusOr<std::optional<v1::Job>> found) {
                             if (!found.ok()) return submission->done(found.status());
                             if (!*found) return PlanSweepLater(submission);
                             controller_->GetSweep((*found)->sweep().sweep_id(), std::move(submission->done));
                           });
}

void Submitter::PlanSweepLater(std::shared_ptr<SweepSubmission> submission) {
  if (controller_->draining() && !submission->request.validate_only()) {
    return submission->done(absl::UnavailableError("the server is shutting down"));
  }
  if (sweeps_.Post([this, submission] { PlanSweep(std::move(*submission)); })) return;
  submission->done(TryAgain(absl::StrCat(options_.max_sweeps, " sweeps wait already; try again"), absl::Seconds(5)));
}

void Submitter::PlanSweep(SweepSubmission submission) {
  absl::StatusOr<std::vector<CreateJobParams>> params = PlanPoints(submission);
  if (!params.ok()) return submission.done(params.status());
  if (submission.request.validate_only()) {
    params->clear();
    v1::JobSweep sweep;
    sweep.set_count(submission.points.count());
    return submission.done(std::move(sweep));
  }
  params->front().request_id = submission.request.request_id();
  params->front().body = std::move(submission.body);
  controller_->CreateSweep(*std::move(params), std::move(submission.done));
}

absl::StatusOr<std::vector<CreateJobParams>> Submitter::PlanPoints(const SweepSubmission& submission) {
  const SweepExpansion& points = submission.points;
  std::vector<CreateJobParams> all;
  std::vector<FieldViolation> violations;
  int64_t bytes = 0;
  for (int i = 0, bad = 0; i < points.count() && bad < kMaxBadPoints; ++i) {
    if (submission.cancelled()) return absl::CancelledError("the sweep's caller is gone");
    // Its errors have the point's name already.
    AMPD_ASSIGN_OR_RETURN(v1::JobSpec spec, points.SpecOf(i));
    absl::StatusOr<CreateJobParams> params = PlanPoint(std::move(spec), submission.caller);
    if (!params.ok()) {
      const absl::Status status = points.InPoint(i, params.status());
      const std::vector<FieldViolation> more = FieldViolationsOf(status);
      if (more.empty()) return status;
      violations.insert(violations.end(), more.begin(), more.end());
      ++bad;
      continue;
    }
    bytes += static_cast<int64_t>(params->spec.ByteSizeLong() + params->plan.ByteSizeLong());
    if (bytes > options_.max_sweep_bytes) {
      return InvalidFields(
          {{"sweep", absl::StrCat("the resolved specs and plans of the first ", i + 1, " of ", points.count(),
                                  " jobs take ", bytes, " bytes; this server takes at most ", options_.max_sweep_bytes,
                                  " a sweep (max_sweep_bytes)")}});
    }
    v1::SweepPoint point;
    point.set_index(i + 1);
    point.set_count(points.count());
    point.set_max_parallel(points.max_parallel());
    *point.mutable_values() = points.ValuesOf(i);
    params->sweep = std::move(point);
    params->user = submission.caller.user;
    if (!submission.request.validate_only()) all.push_back(*std::move(params));
  }
  if (!violations.empty()) return InvalidFields(violations);
  return all;
}

absl::StatusOr<CreateJobParams> Submitter::PlanPoint(v1::JobSpec asked, const Caller& caller) {
  AMPD_ASSIGN_OR_RETURN(Prepared prepared, PrepareJob(std::move(asked), caller));
  auto answer = std::make_shared<std::promise<absl::StatusOr<v1::PlanResponse>>>();
  plans_.Plan(prepared.request,
              [answer](absl::StatusOr<v1::PlanResponse> response) { answer->set_value(std::move(response)); });
  return ParamsOf(std::move(prepared), answer->get_future().get());
}

}  // namespace ampd
