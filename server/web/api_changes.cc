// What the API changes.
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"
#include "server/web/api.h"

namespace ampd {
namespace {

using Service = Backend::Stub;

constexpr absl::Duration kPatience = absl::Seconds(30);
// Until a checkpoint is durable.
constexpr absl::Duration kCheckpointPatience = absl::Seconds(60);
// Until steps are taken.
constexpr absl::Duration kStepsPatience = absl::Seconds(60);

}  // namespace

template <typename Request>
absl::Status JsonApi::ReadChange(Call& call, const char* resource, Request* request) {
  AMPD_RETURN_IF_ERROR(ParseYaml(call.body, "body", request));
  const google::protobuf::FieldDescriptor* field = Request::descriptor()->FindFieldByName(resource);
  const google::protobuf::Reflection* fields = Request::GetReflection();
  if (!fields->GetString(*request, field).empty()) return InvalidFields({{resource, "is in the path"}});
  fields->SetString(request, field, call.arguments[0]);
  call.service_asked = true;
  return absl::OkStatus();
}

template <typename Request, typename Response>
absl::StatusOr<HttpResponse> JsonApi::Change(Call& call, Backend::Method<Request, Response> method,
                                             absl::Duration timeout, const char* resource) {
  Request request;
  AMPD_RETURN_IF_ERROR(ReadChange(call, resource, &request));
  AMPD_ASSIGN_OR_RETURN(const Response response,
                        (backend_.Call<Request, Response>(call.credentials, method, request, timeout)));
  return JsonResponse(ToJson(response, JsonStyle::kPretty));
}

absl::StatusOr<HttpResponse> JsonApi::CancelJob(Call& call) {
  return Change<v1::CancelJobRequest, v1::Job>(call, &Service::CancelJob, kPatience);
}

absl::StatusOr<HttpResponse> JsonApi::PauseJob(Call& call) {
  return Change<v1::PauseJobRequest, v1::Job>(call, &Service::PauseJob, kPatience);
}

absl::StatusOr<HttpResponse> JsonApi::ResumeJob(Call& call) {
  return Change<v1::ResumeJobRequest, v1::Job>(call, &Service::ResumeJob, kPatience);
}

absl::StatusOr<HttpResponse> JsonApi::RetryJob(Call& call) {
  return Change<v1::RetryJobRequest, v1::Job>(call, &Service::RetryJob, kPatience);
}

absl::StatusOr<HttpResponse> JsonApi::CheckpointJob(Call& call) {
  return Change<v1::CheckpointJobRequest, v1::Checkpoint>(call, &Service::CheckpointJob, kCheckpointPatience);
}

absl::StatusOr<HttpResponse> JsonApi::ProfileJob(Call& call) {
  v1::ProfileJobRequest request;
  AMPD_RETURN_IF_ERROR(ReadChange(call, "job_id", &request));
  // Who hangs up leaves a place to others.
  AMPD_ASSIGN_OR_RETURN(const v1::StepProfile profile, (backend_.LongCall<v1::ProfileJobRequest, v1::StepProfile>(
                                                           call.credentials, &Service::AsyncProfileJob, request,
                                                           kStepsPatience, [&] { return call.exchange.IsLeft(); })));
  return JsonResponse(ToJson(profile, JsonStyle::kPretty));
}

absl::StatusOr<HttpResponse> JsonApi::UpdateJob(Call& call) {
  return Change<v1::UpdateJobRequest, v1::Job>(call, &Service::UpdateJob, kPatience);
}

absl::StatusOr<HttpResponse> JsonApi::DrainDevice(Call& call) {
  return Change<v1::DrainDeviceRequest, v1::Device>(call, &Service::DrainDevice, kPatience, "device_id");
}

absl::StatusOr<HttpResponse> JsonApi::UndrainDevice(Call& call) {
  return Change<v1::UndrainDeviceRequest, v1::Device>(call, &Service::UndrainDevice, kPatience, "device_id");
}

}  // namespace ampd
