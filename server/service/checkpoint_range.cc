#include "server/service/checkpoint_range.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

absl::Status CheckRange(const v1::DownloadCheckpointRequest& request) {
  std::vector<FieldViolation> violations;
  if (request.offset() < 0) violations.push_back({"offset", absl::StrCat("must be at least 0, is ", request.offset())});
  if (request.length() < 0) violations.push_back({"length", absl::StrCat("must be at least 0, is ", request.length())});
  if (request.offset() != 0 || request.length() != 0) {
    if (request.file().empty()) violations.push_back({"file", "required with offset or length"});
    // The newest, or the best, may be another one from call to call.
    if (request.checkpoint().empty() || request.checkpoint() == kBestCheckpoint) {
      violations.push_back({"checkpoint", "its name is required with offset or length"});
    }
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

}  // namespace

absl::StatusOr<OpenCheckpoint> OpenAskedFiles(const CheckpointFolders& folders,
                                              const v1::DownloadCheckpointRequest& request,
                                              const Comparison& comparison) {
  AMPD_RETURN_IF_ERROR(CheckRange(request));
  AMPD_ASSIGN_OR_RETURN(OpenCheckpoint opened, OpenAnyCopy(folders, request.checkpoint(), request.file(), comparison));
  if (request.file().empty()) return opened;
  std::vector<CheckpointFile>& files = opened.files;
  files.erase(std::remove_if(files.begin(), files.end(),
                             [&](const CheckpointFile& file) { return file.name != request.file(); }),
              files.end());
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", opened.name, " has no such file"));
  }
  const int64_t size = files[0].size;
  if (request.offset() > size || request.length() > size - request.offset()) {
    return absl::OutOfRangeError(absl::StrCat(files[0].name, " has ", size, " bytes; ", request.length(), " from byte ",
                                              request.offset(), " on are beyond its end"));
  }
  opened.begin = request.offset();
  if (request.length() > 0) opened.end = request.offset() + request.length();
  return opened;
}

}  // namespace ampd
