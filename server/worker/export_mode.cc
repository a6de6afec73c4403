#include "server/worker/export_mode.h"

#include <string>
#include <vector>

#include "ampd/v1/worker_link.pb.h"
#include "engine/core/status.h"
#include "engine/train/export_model.h"
#include "proto/spec/resolve.h"
#include "server/worker/confinement.h"

namespace ampd {

absl::StatusOr<std::string> ExportFromBytes(absl::string_view bytes, const std::string& path) {
  v1::ExportRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("stdin is not an ExportRequest");
  }
  std::vector<std::string> paths = DataFolders(request.data_roots());
  paths.insert(paths.end(), {request.upload_dir(), request.checkpoint_dir()});
  AMPD_RETURN_IF_ERROR(ReadOnlyBeneath(paths));
  const absl::StatusOr<ResolvedJobSpec> spec = ResolveJobSpec(request.spec());
  const absl::Status status = spec.ok() ? train::ExportModel(*spec, request, path) : spec.status();
  v1::ExportResponse response;
  if (!status.ok()) {
    response.set_error(std::string(status.message().empty() ? "no reason given" : status.message()));
    response.set_code(static_cast<int>(status.code()));
  }
  return response.SerializeAsString();
}

}  // namespace ampd
