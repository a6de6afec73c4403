// What stands between a submitted sweep and its jobs.
#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

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
// As JobSweep.warnings.
constexpr size_t kMaxWarnings = 20;
// Sets its request's hash apart from that of a job with this spec.
constexpr char kBodyPrefix[] = "sweep:";

// Adds those of `plan` that are not there yet.
void AddWarnings(const v1::ModelPlan& plan, std::vector<std::string>* warnings) {
  for (const std::string& warning : plan.warnings()) {
    if (warnings->size() >= kMaxWarnings) return;
    if (std::find(warnings->begin(), warnings->end(), warning) == warnings->end()) warnings->push_back(warning);
  }
}

}  // namespace

struct Submitter::SweepSubmission {
  v1::CreateSweepRequest request;
  Caller caller;
  SweepExpansion points;
  std::string body;
  // Not asked after `done`.
  std::function<bool()> cancelled;
  Controller::Done<v1::JobSweep> done;
  // Of the points so far: the next one, how many are wrong and in what, the others' bytes, jobs and warnings.
  int next = 0;
  int bad = 0;
  std::vector<FieldViolation> violations = {};
  int64_t bytes = 0;
  std::vector<CreateJobParams> params = {};
  std::vector<std::string> warnings = {};
  SweepStarts starts = {};

  // Lets go of what is held: before the answer, so that who has it finds nothing held.
  void LetGo() {
    params.clear();
    starts.clear();
  }
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
  if (sweeps_.Post(submission->caller.user, [this, submission] { return PlanSweep(*submission); })) return;
  submission->done(
      TryAgain(absl::StrCat("too many sweeps wait already, of one user at most ", options_.max_sweeps, "; try again"),
               absl::Seconds(5)));
}

bool Submitter::PlanSweep(SweepSubmission& submission) {
  if (absl::Status status = PlanNextPoint(submission); !status.ok()) {
    submission.LetGo();
    submission.done(std::move(status));
    return false;
  }
  if (submission.next < submission.points.count() && submission.bad < kMaxBadPoints) return true;
  FinishSweep(submission);
  return false;
}

void Submitter::FinishSweep(SweepSubmission& submission) {
  if (!submission.violations.empty()) {
    submission.LetGo();
    return submission.done(InvalidFields(submission.violations));
  }
  std::vector<std::string>& warnings = submission.warnings;
  // From here on the jobs' own.
  submission.starts.clear();
  if (submission.request.validate_only()) {
    v1::JobSweep sweep;
    sweep.set_count(submission.points.count());
    sweep.mutable_warnings()->Add(warnings.begin(), warnings.end());
    return submission.done(std::move(sweep));
  }
  submission.params.front().request_id = submission.request.request_id();
  submission.params.front().body = std::move(submission.body);
  auto told = [done = std::move(submission.done), warnings = std::move(warnings)](absl::StatusOr<v1::JobSweep> sweep) {
    if (sweep.ok()) sweep->mutable_warnings()->Add(warnings.begin(), warnings.end());
    done(std::move(sweep));
  };
  controller_->CreateSweep(std::move(submission.params), std::move(told));
}

absl::Status Submitter::PlanNextPoint(SweepSubmission& submission) {
  const SweepExpansion& points = submission.points;
  if (submission.cancelled()) return absl::CancelledError("the sweep's caller is gone");
  const int i = submission.next++;
  // Its errors have the point's name already.
  AMPD_ASSIGN_OR_RETURN(v1::JobSpec spec, points.SpecOf(i));
  absl::StatusOr<CreateJobParams> params = PlanPoint(std::move(spec), submission);
  if (!params.ok()) {
    const absl::Status status = points.InPoint(i, params.status());
    const std::vector<FieldViolation> more = FieldViolationsOf(status);
    if (more.empty()) return status;
    submission.violations.insert(submission.violations.end(), more.begin(), more.end());
    ++submission.bad;
    return absl::OkStatus();
  }
  submission.bytes += static_cast<int64_t>(params->spec.ByteSizeLong() + params->plan.ByteSizeLong());
  if (submission.bytes > options_.max_sweep_bytes) {
    return InvalidFields(
        {{"sweep", absl::StrCat("the resolved specs and plans of the first ", i + 1, " of ", points.count(),
                                " jobs take ", submission.bytes, " bytes; this server takes at most ",
                                options_.max_sweep_bytes, " a sweep (max_sweep_bytes)")}});
  }
  AddWarnings(params->plan, &submission.warnings);
  v1::SweepPoint point;
  point.set_index(i + 1);
  point.set_count(points.count());
  point.set_max_parallel(points.max_parallel());
  *point.mutable_values() = points.ValuesOf(i);
  params->sweep = std::move(point);
  params->user = submission.caller.user;
  if (!submission.request.validate_only()) submission.params.push_back(*std::move(params));
  return absl::OkStatus();
}

absl::StatusOr<CreateJobParams> Submitter::PlanPoint(v1::JobSpec asked, SweepSubmission& submission) {
  AMPD_ASSIGN_OR_RETURN(Prepared prepared, PrepareJob(std::move(asked), submission.caller, &submission.starts));
  auto answer = std::make_shared<std::promise<absl::StatusOr<v1::PlanResponse>>>();
  plans_.Plan(prepared.request,
              [answer](absl::StatusOr<v1::PlanResponse> response) { answer->set_value(std::move(response)); });
  return ParamsOf(std::move(prepared), answer->get_future().get());
}

}  // namespace ampd
