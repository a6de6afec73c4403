// What of a job's spec may change after it was submitted.
#include <utility>

#include "absl/strings/escaping.h"
#include "engine/core/status.h"
#include "proto/spec/labels.h"
#include "proto/spec/names.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

constexpr int kMaxPriority = 1000;

// The spec that the request leads to.
absl::StatusOr<v1::JobSpec> Updated(v1::JobSpec spec, const v1::UpdateJobRequest& request) {
  std::vector<FieldViolation> violations;
  if (request.has_priority()) {
    if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
      violations.push_back({"priority", absl::StrCat("must be from ", -kMaxPriority, " to ", kMaxPriority, ", is ",
                                                     request.priority())});
    }
    spec.mutable_resources()->set_priority(request.priority());
  }
  for (const std::string& key : request.remove_labels()) {
    const std::string shown = absl::CHexEscape(Cut(key, kMaxLabelBytes));
    if (request.set_labels().contains(key)) {
      violations.push_back({"remove_labels", absl::StrCat("\"", shown, "\" is in set_labels, too")});
    } else if (spec.mutable_labels()->erase(key) == 0) {
      violations.push_back({"remove_labels", absl::StrCat("the job has no label \"", shown, "\"")});
    }
  }
  for (const auto& [key, value] : request.set_labels()) (*spec.mutable_labels())[key] = value;
  for (const FieldViolation& violation : LabelViolations(spec)) violations.push_back(violation);
  if (violations.empty()) return spec;
  return InvalidFields(violations);
}

}  // namespace

void ControllerCore::UpdateJob(const v1::UpdateJobRequest& request, ReplyPtr<v1::Job> reply) {
  ChangeJob(
      request.job_id(), [this, request](LiveJob& live) { return UpdateLive(live, request); }, std::move(reply));
}

absl::Status ControllerCore::UpdateLive(LiveJob& live, const v1::UpdateJobRequest& request) {
  AMPD_ASSIGN_OR_RETURN(v1::JobSpec spec, Updated(live.job.proto().spec(), request));
  live.job.ReplaceSpec(std::move(spec));
  needs_schedule_ = true;
  return absl::OkStatus();
}

}  // namespace ampd
