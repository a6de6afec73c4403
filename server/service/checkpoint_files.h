// Reads a job's checkpoints and artifacts for sending: which there are, whether they are whole, and their bytes.
#ifndef AMPD_SERVER_SERVICE_CHECKPOINT_FILES_H_
#define AMPD_SERVER_SERVICE_CHECKPOINT_FILES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "server/files/unique_fd.h"
#include "server/service/verified_files.h"

namespace ampd {

// One file of an opened checkpoint; it stays readable when the checkpoint is deleted.
struct CheckpointFile {
  std::string name;
  int64_t size = 0;
  UniqueFd fd;
};

struct OpenCheckpoint {
  // Empty for an artifact.
  std::string name;
  // What MANIFEST lists, then MANIFEST itself; or the one artifact.
  std::vector<CheckpointFile> files;
  // They are of the copy in mirror_dir.
  bool from_mirror = false;
  // Of the only file, what is asked for: from which byte, up to which; none: to its end.
  int64_t begin = 0;
  std::optional<int64_t> end;
};

// How files are compared with their checksums, which takes some seconds for each GiB.
struct Comparison {
  // Asked again and again: whether nobody waits any more. Empty: somebody does.
  std::function<bool()> is_left;
  // Files that it knows are not read, and those that are read are added; outlives the call. Null: all are read.
  VerifiedFiles* verified = nullptr;
};

// Opens the checkpoint `name` in `directory`, a job's folder of checkpoints; empty: the newest whole one. No symbolic
// link is followed, and only plain file names are accepted from MANIFEST, whose lines are "<sha256> <size> <name>" and
// whose last line is about the lines before it. Every file is read and compared; with `only` that one and MANIFEST
// alone are opened; MANIFEST is one as well.
// INVALID_ARGUMENT for a name that cannot be a checkpoint's, NOT_FOUND when there is none, or no file `only` in it,
// DATA_LOSS naming what is damaged when the named one, or every one, is; CANCELLED once it is left.
absl::StatusOr<OpenCheckpoint> OpenCheckpointFiles(const std::string& directory, const std::string& name,
                                                   const std::string& only = "", const Comparison& comparison = {});

// Names of the checkpoints in `directory`, whole or not, newest first; none where there is no such folder.
std::vector<std::string> ListCheckpoints(const std::string& directory);

// The checkpoints in `directory`, newest first, whole or not: `damage` says what MANIFEST and the sizes of the files
// show; checksums are not compared. `best` is the one that the newest whole one says is the best so far, and
// `best_metric`, NaN or infinite where it was, what that one says of it. The time is MANIFEST's.
std::vector<v1::Checkpoint> DescribeCheckpoints(const std::string& directory);

// Opens the artifact `name` in `directory`, a job's folder of artifacts. No symbolic link is followed.
// INVALID_ARGUMENT for a name that cannot be an artifact's: one with a '/', or a '.' in front, as files that are being
// written have; NOT_FOUND when there is none.
absl::StatusOr<OpenCheckpoint> OpenArtifact(const std::string& directory, const std::string& name);

// Up to `size` bytes at `offset`. DATA_LOSS when the file ends before.
absl::StatusOr<std::string> ReadChunk(const CheckpointFile& file, int64_t offset, int64_t size);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CHECKPOINT_FILES_H_
