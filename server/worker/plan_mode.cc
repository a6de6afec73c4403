#include "server/worker/plan_mode.h"

#include <string>
#include <vector>

#include "ampd/v1/worker_link.pb.h"
#include "engine/core/status.h"
#include "engine/train/trainer.h"
#include "engine/train/worker_build.h"
#include "proto/spec/resolve.h"
#include "proto/spec/utf8.h"
#include "server/worker/confinement.h"

namespace ampd {
namespace {

v1::PlanResponse Plan(const v1::PlanRequest& request) {
  absl::StatusOr<ResolvedJobSpec> spec = ResolveJobSpec(request.spec());
  if (spec.ok()) {
    std::vector<v1::PrecisionSpec::Mode> modes;
    for (const int mode : request.modes()) modes.push_back(static_cast<v1::PrecisionSpec::Mode>(mode));
    return train::PlanJob(*spec, {request.data_roots().begin(), request.data_roots().end()}, request.upload_dir(),
                          request.has_device_model() ? &request.device_model() : nullptr, modes,
                          request.start_checkpoint_dir());
  }
  v1::PlanResponse refused;
  for (const FieldViolation& violation : FieldViolationsOf(spec.status())) {
    v1::FieldError& error = *refused.add_errors();
    error.set_field(violation.field);
    error.set_description(violation.description);
  }
  return refused;
}

}  // namespace

absl::StatusOr<std::string> PlanFromBytes(absl::string_view bytes) {
  v1::PlanRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("stdin is not a PlanRequest");
  }
  std::vector<std::string> paths = DataFolders(request.data_roots());
  paths.insert(paths.end(), {request.upload_dir(), request.start_checkpoint_dir()});
  // It opens its parts when they are needed.
  if (request.device_model().kind() == v1::Device::CUDA) paths.push_back(train::PlanLibraryFolder());
  AMPD_RETURN_IF_ERROR(ReadOnlyBeneath(paths));
  v1::PlanResponse response;
  if (request.has_spec()) response = Plan(request);
  *response.mutable_build() = train::ThisBuild();
  // Errors quote the data, which may hold any bytes.
  MakeValidUtf8(&response);
  return response.SerializeAsString();
}

}  // namespace ampd
