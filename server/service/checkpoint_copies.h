// A job's checkpoints with their copies in mirror_dir, which take the place of what is damaged or gone.
#ifndef AMPD_SERVER_SERVICE_CHECKPOINT_COPIES_H_
#define AMPD_SERVER_SERVICE_CHECKPOINT_COPIES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "server/service/checkpoint_files.h"

namespace ampd {

struct CheckpointFolders {
  // The job's folder of checkpoints.
  std::string own;
  // Its folder of copies, on a disk that may hang: looked at only where a checkpoint is damaged or gone. Empty: none.
  std::string mirror;
  // Name of the newest checkpoint that the job told of, which is gone where `own` does not have it; empty: none.
  std::string newest;
};

// Those of the job; `mirror_root` may be empty.
CheckpointFolders FoldersOfJob(const std::string& checkpoint_root, const std::string& mirror_root,
                               const std::string& job_id, const std::string& newest);

// Names of checkpoints that may be the newest whole one, newest first. Those of the mirror alone come into play when
// all others are lost: they are another call's.
std::vector<std::string> NewestFirst(const CheckpointFolders& folders, bool in_mirror);

// The name that stands for whichever checkpoint is the best.
constexpr char kBestCheckpoint[] = "best";

// Name of the checkpoint that checkpoint.keep_best keeps, as the newest whole one tells it. NOT_FOUND where there is
// none.
absl::StatusOr<std::string> BestCheckpoint(const CheckpointFolders& folders);

// What `own`, about a checkpoint, says with what `copy` says of its copy behind it.
absl::Status WithCopysError(const absl::Status& own, const absl::Status& copy);

// OpenCheckpointFiles() of `own`, or where that checkpoint is damaged or gone of its copy, which then has from_mirror;
// with `only` a copy of another MANIFEST than `own` has of that checkpoint counts as damaged. The newest: the first of
// which either is whole; "best" is BestCheckpoint(). Errors are those about `own`; the copy's damage stands behind
// them.
absl::StatusOr<OpenCheckpoint> OpenAnyCopy(const CheckpointFolders& folders, const std::string& name,
                                           const std::string& only = "", const Comparison& comparison = {});

// DescribeCheckpoints() of `own`, with in_mirror of those damaged. Where `newest` is gone, what the mirror alone has
// and is newer than all of `own` is among them, and its damage says that it is gone.
std::vector<v1::Checkpoint> DescribeCopies(const CheckpointFolders& folders);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CHECKPOINT_COPIES_H_
