#include "server/service/dataset_use.h"

#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "server/service/data_paths.h"

namespace ampd {
namespace {

// Empty: nothing. The dataset is held.
std::string WhatIsMissing(const DatasetPath& path, const DatasetStore& datasets) {
  struct stat info {};
  const std::string file = absl::StrCat(DatasetFilesFolder(datasets.folder(), path.name), "/", path.path);
  if (path.path.empty() || lstat(file.c_str(), &info) == 0) return "";
  return absl::StrCat("dataset ", path.name, " has no ", Quoted(path.path));
}

// What is wrong with one path; empty: nothing, and then `held` has its dataset. An error: that cannot be told now.
absl::StatusOr<std::string> Hold(const std::string& path, DatasetStore* datasets,
                                 std::vector<std::shared_ptr<DatasetStore::Hold>>* held) {
  const absl::StatusOr<DatasetPath> parsed = ParseDatasetPath(path);
  if (!parsed.ok()) return std::string(parsed.status().message());
  if (datasets == nullptr) return "this server keeps no datasets";
  absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> hold = datasets->HoldAll({parsed->name});
  if (absl::IsAborted(hold.status())) return hold.status();
  if (absl::IsDataLoss(hold.status())) return std::string(hold.status().message());
  if (!hold.ok()) return absl::StrCat(hold.status().message(), " (UploadDataset; ampctl datasets upload)");
  held->push_back(*std::move(hold));
  return WhatIsMissing(*parsed, *datasets);
}

}  // namespace

std::set<std::string> DatasetsOf(const v1::JobSpec& spec) {
  std::set<std::string> names;
  for (const NamedPath& named : PathsOf(spec)) {
    if (!NamesDataset(named.path)) continue;
    const absl::StatusOr<DatasetPath> parsed = ParseDatasetPath(named.path);
    if (parsed.ok()) names.insert(parsed->name);
  }
  return names;
}

absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> HoldDatasets(const v1::JobSpec& spec, DatasetStore* datasets) {
  std::vector<FieldViolation> violations;
  std::vector<std::shared_ptr<DatasetStore::Hold>> held;
  for (const NamedPath& named : PathsOf(spec)) {
    if (!NamesDataset(named.path)) continue;
    AMPD_ASSIGN_OR_RETURN(std::string wrong, Hold(named.path, datasets, &held));
    if (!wrong.empty()) violations.push_back({named.field, std::move(wrong)});
  }
  if (!violations.empty()) return InvalidFields(violations);
  if (held.empty()) return nullptr;
  return datasets->HoldAll(DatasetsOf(spec));
}

}  // namespace ampd
