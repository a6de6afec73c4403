#include "server/launch/plan_process.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "server/launch/sanitized.h"

namespace ampd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
// No model of ONNX's is larger.
constexpr int64_t kMostModelBytes = 2 * kGiB;
constexpr int64_t kSecondsForGiB = 60;

// The file's bytes, what is parsed of them, and graphs of training and evaluation, each with the weights of its own.
constexpr int64_t kCopies = 6;

// Of a folder and those beneath it: that many at most.
constexpr int kMostEntriesLookedAt = 4096;

int64_t BytesOf(const struct stat& file) {
  return S_ISREG(file.st_mode) ? std::min<int64_t>(file.st_size, kMostModelBytes) : 0;
}

int64_t BytesOf(const std::string& path) {
  struct stat file = {};
  return stat(path.c_str(), &file) == 0 ? BytesOf(file) : 0;
}

// Of the model and all that lies beside it, and then beneath, links followed: tensors may lie in any of these files,
// and in which only who parses the model knows.
int64_t BytesBeside(const std::string& path) {
  const int64_t own = BytesOf(path);
  if (own == 0) return 0;
  int64_t bytes = 0;
  int looked_at = 0;
  std::deque<std::filesystem::path> folders = {std::filesystem::path(path).parent_path()};
  for (; !folders.empty() && bytes < kMostModelBytes; folders.pop_front()) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folders.front(), error), end;
         !error && entry != end && looked_at < kMostEntriesLookedAt; entry.increment(error), ++looked_at) {
      struct stat file = {};
      if (stat(entry->path().c_str(), &file) != 0) continue;
      if (S_ISDIR(file.st_mode)) folders.push_back(entry->path());
      bytes = std::min(bytes + BytesOf(file), kMostModelBytes);
    }
  }
  return std::max(bytes, own);
}

// Of the model that `path` names, which who plans opens and checks; 0 where there is none.
int64_t ModelBytes(const v1::PlanRequest& request) {
  absl::string_view path = request.spec().model().onnx().path();
  if (absl::ConsumePrefix(&path, "upload:")) return BytesOf(absl::StrCat(request.upload_dir(), "/", path));
  if (absl::StartsWith(path, "/")) return BytesBeside(std::string(path));
  const absl::StatusOr<DatasetPath> dataset = ParseDatasetPath(path);
  int64_t bytes = 0;
  for (const std::string& root : request.data_roots()) {
    const std::optional<std::string> datasets = FolderOfDatasetRoot(root);
    if (datasets.has_value() != dataset.ok()) continue;
    const std::string place = datasets.has_value()
                                  ? absl::StrCat(DatasetFilesFolder(*datasets, dataset->name), "/", dataset->path)
                                  : absl::StrCat(root, "/", path);
    bytes = std::max(bytes, BytesBeside(place));
  }
  return bytes;
}

}  // namespace

PlanLimits DefaultPlanLimits() {
  PlanLimits limits;
  if (!kSanitized) limits.address_space_bytes = uint64_t{8} << 30;
  // The thread sanitizer begins with a file.
  if (kSanitized) limits.file_bytes.reset();
  return limits;
}

PlanLimits GrownByModelFile(PlanLimits limits, const v1::PlanRequest& request) {
  if (!request.spec().model().has_onnx()) return limits;
  const int64_t bytes = ModelBytes(request), seconds = bytes * kSecondsForGiB / kGiB;
  limits.timeout += absl::Seconds(seconds);
  limits.cpu_seconds += static_cast<uint64_t>(seconds);
  if (limits.address_space_bytes > 0) limits.address_space_bytes += static_cast<uint64_t>(kCopies * bytes);
  return limits;
}

absl::StatusOr<v1::PlanResponse> RunPlanProcess(const std::string& worker, const v1::PlanRequest& request,
                                                const PlanLimits& limits) {
  const ExchangeWords words{"planner", "planning the model"};
  AMPD_ASSIGN_OR_RETURN(const std::string answer, AskWorker({worker, "--plan"}, request.SerializeAsString(),
                                                            GrownByModelFile(limits, request), words));
  v1::PlanResponse response;
  if (answer.empty() || !response.ParseFromString(answer)) {
    return absl::InternalError(
        absl::StrCat("planning the model: the planner's answer of ", answer.size(), " bytes is not a PlanResponse"));
  }
  return response;
}

}  // namespace ampd
