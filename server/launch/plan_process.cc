#include "server/launch/plan_process.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/launch/sanitized.h"

namespace ampd {

PlanLimits DefaultPlanLimits() {
  PlanLimits limits;
  if (!kSanitized) limits.address_space_bytes = uint64_t{8} << 30;
  // The thread sanitizer begins with a file.
  if (kSanitized) limits.file_bytes.reset();
  return limits;
}

absl::StatusOr<v1::PlanResponse> RunPlanProcess(const std::string& worker, const v1::PlanRequest& request,
                                                const PlanLimits& limits) {
  const ExchangeWords words{"planner", "planning the model"};
  AMPD_ASSIGN_OR_RETURN(const std::string answer,
                        AskWorker({worker, "--plan"}, request.SerializeAsString(), limits, words));
  v1::PlanResponse response;
  if (answer.empty() || !response.ParseFromString(answer)) {
    return absl::InternalError(
        absl::StrCat("planning the model: the planner's answer of ", answer.size(), " bytes is not a PlanResponse"));
  }
  return response;
}

}  // namespace ampd
