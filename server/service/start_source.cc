#include "server/service/start_source.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/upload_path.h"
#include "server/service/checkpoint_copies.h"
#include "server/service/checkpoint_files.h"

namespace ampd {
namespace {

constexpr char kWeights[] = "model.safetensors";
// OpenCheckpointFiles() of all there are.
constexpr char kEveryFile[] = "";

struct NamedUpload {
  std::string field;
  std::string path;
  // Empty: the path is not right.
  std::string checksum;
};

std::vector<NamedUpload> NamedUploads(const v1::JobSpec& spec) {
  std::vector<NamedUpload> uploads;
  const auto add = [&](const char* field, const std::string& path) {
    if (NamesUpload(path)) uploads.push_back({field, path, UploadChecksum(path)});
  };
  add("model.onnx.path", spec.model().onnx().path());
  add("start_from.path", spec.start_from().path());
  return uploads;
}

absl::StatusOr<std::shared_ptr<HeldWeights>> HoldWhole(const std::string& directory, const std::string& name,
                                                       HeldFiles files, const StartFolders& starts,
                                                       const std::function<bool()>& is_left) {
  AMPD_ASSIGN_OR_RETURN(std::shared_ptr<HeldWeights> held, starts.Hold(directory, name, files));
  // What is held, not what it was linked from: that may be another by now.
  const char* const compared = files == HeldFiles::kAll ? kEveryFile : kWeights;
  const absl::Status whole = OpenCheckpointFiles(held->folder(), name, compared, {.is_left = is_left}).status();
  if (!whole.ok()) return Annotate(whole, absl::StrCat("checkpoint ", name));
  return held;
}

// Of the checkpoint, as opposed to the disk's or the process's.
bool IsOfTheCheckpoint(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

absl::StatusOr<std::shared_ptr<HeldWeights>> HoldEither(const CheckpointFolders& folders, const std::string& name,
                                                        HeldFiles files, const StartFolders& starts,
                                                        const std::function<bool()>& is_left) {
  absl::StatusOr<std::shared_ptr<HeldWeights>> own = HoldWhole(folders.own, name, files, starts, is_left);
  if (own.ok() || folders.mirror.empty() || !IsOfTheCheckpoint(own.status())) return own;
  absl::StatusOr<std::shared_ptr<HeldWeights>> copy = HoldWhole(folders.mirror, name, files, starts, is_left);
  // What stopped it from being held is not of the checkpoint either: there is no room, or nobody waits any more.
  if (copy.ok() || absl::IsResourceExhausted(copy.status()) || absl::IsCancelled(copy.status())) return copy;
  return WithCopysError(own.status(), copy.status());
}

}  // namespace

std::set<std::string> UploadsOf(const v1::JobSpec& spec) {
  std::set<std::string> checksums;
  for (const NamedUpload& upload : NamedUploads(spec)) checksums.insert(upload.checksum);
  checksums.erase("");
  return checksums;
}

absl::Status CheckUploads(const v1::JobSpec& spec, UploadStore* uploads) {
  std::vector<FieldViolation> violations;
  for (const NamedUpload& upload : NamedUploads(spec)) {
    if (!upload.checksum.empty() && uploads != nullptr && uploads->Use(upload.checksum)) continue;
    violations.push_back(
        {upload.field, absl::StrCat("no file was uploaded with the checksum of \"", Cut(upload.path, 100),
                                    "\" (UploadModel; ampctl submit sends local files)")});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

absl::StatusOr<std::shared_ptr<HeldWeights>> HoldStart(const JobFinder& find, const CheckpointRoots& roots,
                                                       const StartFolders& starts, v1::WeightSource* source,
                                                       const std::function<bool()>& is_left) {
  const absl::StatusOr<v1::Job> job = find(source->job_id());
  if (absl::IsNotFound(job.status()) || absl::IsInvalidArgument(job.status())) {
    return InvalidFields({{"start_from.job_id", std::string(job.status().message())}});
  }
  AMPD_RETURN_IF_ERROR(job.status());
  const CheckpointFolders folders = FoldersOfJob(roots.own, roots.mirror, job->id(), job->summary().checkpoint());
  const HeldFiles files = source->continue_training() ? HeldFiles::kAll : HeldFiles::kWeights;
  const bool named = !source->checkpoint().empty();
  if (source->checkpoint() == kBestCheckpoint) {
    const absl::StatusOr<std::string> best = BestCheckpoint(folders);
    if (!best.ok()) {
      return InvalidFields(
          {{"start_from.checkpoint", absl::StrCat("job ", job->id(), ": ", std::string(best.status().message()))}});
    }
    source->set_checkpoint(*best);
  }
  absl::Status first_error;
  // Those that the mirror alone has come last into play.
  for (const bool in_mirror : {false, true}) {
    if (in_mirror && (named || folders.mirror.empty())) break;
    const std::vector<std::string> names =
        named ? std::vector<std::string>{source->checkpoint()} : NewestFirst(folders, in_mirror);
    // The job has told of none: there is none in the mirror.
    if (names.empty() && !in_mirror) break;
    for (const std::string& name : names) {
      absl::StatusOr<std::shared_ptr<HeldWeights>> held = HoldEither(folders, name, files, starts, is_left);
      if (held.ok()) {
        source->set_job_id(job->id());
        source->set_checkpoint(name);
        return held;
      }
      if (!IsOfTheCheckpoint(held.status())) return held.status();
      first_error.Update(held.status());
    }
  }
  if (first_error.ok()) first_error = absl::NotFoundError("it has none");
  return InvalidFields(
      {{named ? "start_from.checkpoint" : "start_from.job_id",
        absl::StrCat("job ", job->id(), " has no checkpoint to start from: ", std::string(first_error.message()))}});
}

}  // namespace ampd
