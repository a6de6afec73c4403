#include "server/service/checkpoint_copies.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/service/checkpoint_manifest.h"

namespace ampd {
namespace {

bool IsLost(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

// Newest first, as ListCheckpoints().
bool IsNewer(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() > b.size() : a > b; }

// Of a checkpoint's MANIFEST; empty where it is damaged or gone.
std::string ManifestOf(const std::string& directory, const std::string& name) {
  const absl::StatusOr<OpenCheckpoint> opened = OpenCheckpointFiles(directory, name, kManifest);
  if (!opened.ok()) return "";
  const CheckpointFile& manifest = opened->files.back();
  return ReadChunk(manifest, 0, manifest.size).value_or("");
}

absl::StatusOr<OpenCheckpoint> OpenCopy(const CheckpointFolders& folders, const std::string& name,
                                        const std::string& only, const Comparison& comparison) {
  absl::StatusOr<OpenCheckpoint> copy = OpenCheckpointFiles(folders.mirror, name, only, comparison);
  if (!copy.ok()) return copy;
  copy->from_mirror = true;
  // Its other files may come from the folder itself.
  const std::string own = only.empty() ? "" : ManifestOf(folders.own, name);
  if (own.empty() || own == ManifestOf(folders.mirror, name)) return copy;
  return absl::DataLossError("it was made when the training came by this step before");
}

absl::StatusOr<OpenCheckpoint> OpenEither(const CheckpointFolders& folders, const std::string& name,
                                          const std::string& only, const Comparison& comparison) {
  absl::StatusOr<OpenCheckpoint> own = OpenCheckpointFiles(folders.own, name, only, comparison);
  if (own.ok() || folders.mirror.empty() || !IsLost(own.status())) return own;
  // Asked for is a file that the checkpoint does not have.
  if (absl::IsNotFound(own.status()) && !ManifestOf(folders.own, name).empty()) return own;
  absl::StatusOr<OpenCheckpoint> copy = OpenCopy(folders, name, only, comparison);
  if (copy.ok() || absl::IsCancelled(copy.status())) return copy;
  return WithCopysError(own.status(), copy.status());
}

}  // namespace

CheckpointFolders FoldersOfJob(const std::string& checkpoint_root, const std::string& mirror_root,
                               const std::string& job_id, const std::string& newest) {
  return {absl::StrCat(checkpoint_root, "/", job_id), mirror_root.empty() ? "" : absl::StrCat(mirror_root, "/", job_id),
          newest};
}

std::vector<std::string> NewestFirst(const CheckpointFolders& folders, bool in_mirror) {
  std::vector<std::string> names = ListCheckpoints(in_mirror ? folders.mirror : folders.own);
  if (!in_mirror && !folders.newest.empty()) names.push_back(folders.newest);
  std::sort(names.begin(), names.end(), IsNewer);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

absl::StatusOr<std::string> BestCheckpoint(const CheckpointFolders& folders) {
  for (const v1::Checkpoint& checkpoint : DescribeCopies(folders)) {
    if (checkpoint.best()) return checkpoint.name();
  }
  return absl::NotFoundError(
      "the job has no best checkpoint: it keeps one with checkpoint.keep_best, from its first evaluation on");
}

absl::Status WithCopysError(const absl::Status& own, const absl::Status& copy) {
  if (absl::IsNotFound(copy)) return own;
  return absl::Status(own.code(), absl::StrCat(own.message(), "; the mirror's copy: ", copy.message()));
}

absl::StatusOr<OpenCheckpoint> OpenAnyCopy(const CheckpointFolders& folders, const std::string& name,
                                           const std::string& only, const Comparison& comparison) {
  if (name == kBestCheckpoint) {
    AMPD_ASSIGN_OR_RETURN(const std::string best, BestCheckpoint(folders));
    return OpenEither(folders, best, only, comparison);
  }
  if (folders.mirror.empty() || !name.empty()) return OpenEither(folders, name, only, comparison);
  for (const bool in_mirror : {false, true}) {
    const std::vector<std::string> names = NewestFirst(folders, in_mirror);
    // The job has told of none: there is none in the mirror.
    if (names.empty() && !in_mirror) break;
    for (const std::string& one : names) {
      absl::StatusOr<OpenCheckpoint> opened = OpenEither(folders, one, only, comparison);
      if (opened.ok() || !IsLost(opened.status())) return opened;
    }
  }
  // A running job may have replaced all of them meanwhile.
  return OpenCheckpointFiles(folders.own, name, only, comparison);
}

std::vector<v1::Checkpoint> DescribeCopies(const CheckpointFolders& folders) {
  std::vector<v1::Checkpoint> checkpoints = DescribeCheckpoints(folders.own);
  const auto find = [](std::vector<v1::Checkpoint>* all, const std::string& name) {
    return std::find_if(all->begin(), all->end(), [&](const v1::Checkpoint& one) { return one.name() == name; });
  };
  // A worker removes old ones before it tells of the next.
  const std::string newest = checkpoints.empty() ? "" : checkpoints.front().name();
  const bool is_gone = !folders.newest.empty() && (newest.empty() || IsNewer(folders.newest, newest));
  const bool is_damaged = std::any_of(checkpoints.begin(), checkpoints.end(),
                                      [](const v1::Checkpoint& one) { return !one.damage().empty(); });
  if (folders.mirror.empty() || (!is_gone && !is_damaged)) return checkpoints;
  for (v1::Checkpoint& copy : DescribeCheckpoints(folders.mirror)) {
    if (!copy.damage().empty()) continue;
    const auto own = find(&checkpoints, copy.name());
    if (own != checkpoints.end()) {
      own->set_in_mirror(!own->damage().empty());
    } else if (is_gone && (newest.empty() || IsNewer(copy.name(), newest))) {
      copy.set_damage("its folder is gone");
      copy.set_in_mirror(true);
      checkpoints.push_back(std::move(copy));
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const v1::Checkpoint& a, const v1::Checkpoint& b) { return IsNewer(a.name(), b.name()); });
  return checkpoints;
}

}  // namespace ampd
