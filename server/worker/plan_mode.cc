#include "server/worker/plan_mode.h"

#include <vector>

#include "ampd/v1/worker_link.pb.h"
#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"

namespace ampd {

absl::StatusOr<std::string> PlanFromBytes(absl::string_view bytes) {
  v1::PlanRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("stdin is not a PlanRequest");
  }
  absl::StatusOr<ResolvedJobSpec> spec = ResolveJobSpec(request.spec());
  if (!spec.ok()) {
    v1::PlanResponse refused;
    for (const FieldViolation& violation : FieldViolationsOf(spec.status())) {
      v1::FieldError& error = *refused.add_errors();
      error.set_field(violation.field);
      error.set_description(violation.description);
    }
    return refused.SerializeAsString();
  }
  const std::vector<std::string> roots(request.data_roots().begin(), request.data_roots().end());
  return train::PlanJob(*spec, roots).SerializeAsString();
}

}  // namespace ampd
