// Weights and trainings that jobs start from, held for them until they end: root/JOB/CHECKPOINT has links to files of
// another job's checkpoint, which that job's own retention may delete meanwhile: to model.safetensors and MANIFEST, or
// to all.
#ifndef AMPD_SERVER_JOBS_START_FOLDERS_H_
#define AMPD_SERVER_JOBS_START_FOLDERS_H_

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/file_sharing.h"
#include "server/files/folder_remover.h"

namespace ampd {

// What of a checkpoint is held.
enum class HeldFiles { kWeights, kAll };

// What is held for a job that is being submitted; let go of with this object unless it was given to the job.
class HeldWeights {
 public:
  ~HeldWeights();
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;

  // Holds one folder, named as the checkpoint.
  const std::string& folder() const { return folder_; }
  const std::string& checkpoint() const { return checkpoint_; }
  std::string checkpoint_dir() const { return folder_ + "/" + checkpoint_; }

  // Makes it the job's: StartFolders::PathOf() finds it. Durable after StartFolders::Sync(). Once.
  absl::Status GiveTo(const std::string& job_id);

 private:
  friend class StartFolders;
  HeldWeights(std::shared_ptr<FolderRemover> remover, std::string root, std::string folder, std::string checkpoint)
      : remover_(std::move(remover)),
        root_(std::move(root)),
        folder_(std::move(folder)),
        checkpoint_(std::move(checkpoint)) {}

  const std::shared_ptr<FolderRemover> remover_;
  std::string root_;
  std::string folder_;
  std::string checkpoint_;
  bool given_ = false;
};

// Thread safe; functions block on the disk. What is let go of is removed on a thread of its own; where the process ends
// before, by the next KeepOnly.
class StartFolders {
 public:
  // `root` is made when it is first needed; an absolute path on the file system of the checkpoints, or weights are
  // copied instead of linked. Workers can read what is held.
  explicit StartFolders(std::string root, FileSharing workers = {})
      : root_(std::move(root)), workers_(workers), remover_(std::make_shared<FolderRemover>()) {}

  // Holds `files` of the checkpoint `name` in `directory`, a job's folder of checkpoints. What it holds is not checked,
  // but cannot change any more. NOT_FOUND when there is none of the name, or it lacks a file that every checkpoint has;
  // DATA_LOSS where one is no regular file; RESOURCE_EXHAUSTED when there is no room; else the file system's error with
  // the path.
  absl::StatusOr<std::shared_ptr<HeldWeights>> Hold(const std::string& directory, const std::string& name,
                                                    HeldFiles files = HeldFiles::kWeights) const;

  // The folder of the checkpoint that was given to the job.
  std::string PathOf(const std::string& job_id, const std::string& checkpoint) const;

  // Forces to disk what jobs were given so far.
  absl::Status Sync() const;

  // Lets go of what the job was given, which may be given anew at once; harmless where it was given nothing. Changes a
  // name, and waits for nothing else.
  void Release(const std::string& job_id) const;

  // Lets go of everything but what was given to `job_ids`: for the start of a daemon.
  void KeepOnly(const std::set<std::string>& job_ids) const;

  // Waits until what was let go of is removed.
  void Flush() const { remover_->Flush(); }

 private:
  const std::string root_;
  const FileSharing workers_;
  // Shared with what is held.
  const std::shared_ptr<FolderRemover> remover_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_START_FOLDERS_H_
