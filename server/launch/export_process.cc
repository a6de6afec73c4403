#include "server/launch/export_process.h"

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/launch/sanitized.h"

namespace ampd {

ExchangeLimits ExportLimits(int64_t checkpoint_bytes) {
  ExchangeLimits limits;
  limits.timeout = absl::Minutes(2);
  limits.cpu_seconds = 120;
  // In single precision and another form it is hardly larger than what it is made of, which may be in half.
  limits.file_bytes = (uint64_t{1} << 30) + 4 * static_cast<uint64_t>(checkpoint_bytes);
  // The checkpoint's weights, the model made of them, its bytes, and room for the program itself.
  if (!kSanitized) limits.address_space_bytes = (uint64_t{4} << 30) + 6 * static_cast<uint64_t>(checkpoint_bytes);
  return limits;
}

absl::Status RunExportProcess(const std::string& worker, const v1::ExportRequest& request, const std::string& path,
                              const ExchangeLimits& limits) {
  const ExchangeWords words{"exporter", "exporting the model"};
  AMPD_ASSIGN_OR_RETURN(const std::string answer,
                        AskWorker({worker, "--export", path}, request.SerializeAsString(), limits, words));
  v1::ExportResponse response;
  if (!response.ParseFromString(answer)) {
    return absl::InternalError(absl::StrCat("exporting the model: the exporter's answer of ", answer.size(),
                                            " bytes is not an ExportResponse"));
  }
  if (response.error().empty()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(response.code()), response.error());
}

}  // namespace ampd
