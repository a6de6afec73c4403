#include "engine/train/artifacts.h"

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/files.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

constexpr size_t kMaxNameBytes = 200;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' && IsMadeOf(name, "_-.");
}

absl::Status Write(const std::string& path, const std::string& bytes) {
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(path));
  AMPD_RETURN_IF_ERROR(file.Append(bytes));
  return file.Close();
}

}  // namespace

absl::StatusOr<v1::ArtifactSaved> ArtifactStore::Save(const Artifact& artifact) const {
  if (!IsName(artifact.name)) {
    return absl::InvalidArgumentError(absl::StrCat("[artifact] no name for a file: ", Quoted(artifact.name)));
  }
  if (!keeps()) return absl::FailedPreconditionError("[artifact] there is no folder for artifacts");
  AMPD_RETURN_IF_ERROR(MakeFolder(folder_));
  const std::string aside = absl::StrCat(folder_, "/.writing-", artifact.name);
  // What a killed worker left.
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  absl::Status status = Write(aside, artifact.bytes);
  if (status.ok()) status = RenameOrSwap(aside, absl::StrCat(folder_, "/", artifact.name));
  // The half of a file, or the one that was replaced.
  const absl::Status removed = RemoveTree(aside);
  AMPD_RETURN_IF_ERROR(Annotate(status, absl::StrCat("artifact ", artifact.name)));
  AMPD_RETURN_IF_ERROR(removed);
  AMPD_RETURN_IF_ERROR(SyncFolder(folder_));
  v1::ArtifactSaved saved;
  saved.set_name(artifact.name);
  saved.set_content_type(artifact.content_type);
  saved.set_size_bytes(static_cast<int64_t>(artifact.bytes.size()));
  return saved;
}

}  // namespace ampd::train
