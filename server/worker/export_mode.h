// `ampd-worker --export FILE`.
#ifndef AMPD_SERVER_WORKER_EXPORT_MODE_H_
#define AMPD_SERVER_WORKER_EXPORT_MODE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

// A serialized ExportRequest to a serialized ExportResponse, and the model in the new file `path`. What goes wrong with
// the export is in the response. INVALID_ARGUMENT when `request` is not an ExportRequest.
absl::StatusOr<std::string> ExportFromBytes(absl::string_view request, const std::string& path);

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_EXPORT_MODE_H_
