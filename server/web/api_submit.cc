// Job files.
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/text.h"
#include "server/web/api.h"
#include "server/web/sent_job_file.h"

namespace ampd {
namespace {

using Service = Backend::Stub;

constexpr absl::Duration kJobPatience = absl::Seconds(60);
// Every job of it is planned. A repeat finds what was planned already.
constexpr absl::Duration kSweepPatience = absl::Seconds(120);

}  // namespace

absl::StatusOr<HttpResponse> JsonApi::Submit(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const bool validate_only, call.query.Flag("validate_only"));
  // Before the text is looked at, which takes more than any other body.
  if (options_.gate->asks_for_tokens()) {
    AMPD_RETURN_IF_ERROR(options_.gate->Identify(call.credentials.secret).status());
  }
  const SentJobFile file(call.body);
  if (!file.status().ok()) return file.Refusal(file.status());
  call.service_asked = true;
  absl::StatusOr<std::string> answer = file.spec().has_sweep() ? CreateSweep(call, file.spec(), validate_only)
                                                               : CreateJob(call, file.spec(), validate_only);
  if (!answer.ok()) return file.Refusal(answer.status());
  return JsonResponse(*std::move(answer));
}

absl::StatusOr<std::string> JsonApi::CreateJob(const Call& call, const v1::JobSpec& spec, bool validate_only) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(call.query.Text("request_id"));
  request.set_validate_only(validate_only);
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, (backend_.Call<v1::CreateJobRequest, v1::Job>(
                                               call.credentials, &Service::CreateJob, request, kJobPatience)));
  return absl::StrCat("{\"job\": ", ToJson(job, JsonStyle::kPretty), "}\n");
}

absl::StatusOr<std::string> JsonApi::CreateSweep(const Call& call, const v1::JobSpec& spec, bool validate_only) {
  v1::CreateSweepRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(call.query.Text("request_id"));
  request.set_validate_only(validate_only);
  // What nobody waits for any more is not planned to its end.
  AMPD_ASSIGN_OR_RETURN(const v1::JobSweep sweep, (backend_.LongCall<v1::CreateSweepRequest, v1::JobSweep>(
                                                      call.credentials, &Service::AsyncCreateSweep, request,
                                                      kSweepPatience, [&] { return call.exchange.IsLeft(); })));
  return absl::StrCat("{\"sweep\": ", ToJson(sweep, JsonStyle::kPretty), "}\n");
}

}  // namespace ampd
