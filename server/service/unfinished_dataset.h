// A dataset that is being uploaded: its files so far, in a folder of its own with a JOURNAL of what was announced.
#ifndef AMPD_SERVER_SERVICE_UNFINISHED_DATASET_H_
#define AMPD_SERVER_SERVICE_UNFINISHED_DATASET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/files/byte_budget.h"
#include "server/files/unique_fd.h"
#include "server/service/dataset_manifest.h"
#include "server/service/sha256.h"

namespace ampd {

struct DatasetLimits {
  // Of one file.
  int64_t file_bytes = int64_t{4} << 30;
  int64_t files = 250000;
  // Of what is said of the files of one dataset: names, sizes and checksums.
  int64_t manifest_bytes = 32 << 20;
  // Counts for a file besides its bytes: a block of the file system, and what the MANIFEST says of it.
  int64_t entry_bytes = 5 << 10;
  // Of all files of all datasets, and whatever else counts there.
  std::shared_ptr<ByteBudget> all = std::make_shared<ByteBudget>(int64_t{64} << 30);
  // Of what is said of the files of all unfinished datasets, which is kept in memory.
  std::shared_ptr<ByteBudget> journals = std::make_shared<ByteBudget>(int64_t{64} << 20);
  // Why no more bytes are taken for want of room on the disk, in words; empty text: they are. Thread safe, and soon
  // done. Empty function: there is always room.
  std::function<std::string()> shortage;
};

// Thread safe; most functions block on the disk. Who sends takes a turn; a turn ends when the next is taken, so that a
// client whose connection broke need not wait for the server to notice.
class UnfinishedDataset {
 public:
  // In `made`, an empty folder, which becomes `folder` once it holds what it must.
  static absl::StatusOr<std::shared_ptr<UnfinishedDataset>> Create(const std::string& name, const std::string& user,
                                                                   absl::Time now, const std::string& made,
                                                                   const std::string& folder,
                                                                   const DatasetLimits& limits);
  // By user.
  using LimitsOf = std::function<DatasetLimits(const std::string& user)>;
  // What an earlier daemon left in `folder`, whatever state that is in; removes files that no line of the journal
  // tells of. DATA_LOSS when there is no journal that can be read.
  static absl::StatusOr<std::shared_ptr<UnfinishedDataset>> Open(const std::string& name, const std::string& folder,
                                                                 const LimitsOf& limits_of);
  // The files stay, and no longer count.
  ~UnfinishedDataset();

  const std::string& user() const { return header_.user; }
  // Never blocks on the disk.
  v1::Dataset Describe(bool with_files) const;

  uint64_t TakeTurn();
  // No turn is valid any more: the dataset goes. Waits for what is under way.
  void End();

  // The next bytes are of this file, from `offset` on; those before it that are there are kept. Errors as
  // TrainingService.UploadDataset's, as those of the rest.
  absl::Status BeginFile(uint64_t turn, const v1::DatasetFile& file, int64_t offset);
  // Of the file begun last. `offset` is where the bytes before ended.
  absl::Status Append(uint64_t turn, int64_t offset, absl::string_view bytes);
  // Checks every file that was not checked by this process, forces all to disk, writes the MANIFEST and calls
  // `publish`, which gives the folder its name; once that was OK the upload is over, and the bytes count no longer
  // here. FAILED_PRECONDITION where there is no file; INVALID_ARGUMENT naming files that lack bytes; DATA_LOSS naming
  // one that is damaged, of which nothing is kept; ABORTED soon after another took its turn: what was checked stays so.
  absl::StatusOr<DatasetHeader> Commit(uint64_t turn,
                                       const std::function<absl::Status(const DatasetHeader& header)>& publish);

 private:
  struct File {
    int64_t size = 0;
    std::string sha256;
    int64_t received = 0;
    // This process saw all its bytes, and they have the checksum.
    bool checked = false;
  };

  // `journal` has `journal_bytes`.
  UnfinishedDataset(std::string name, std::string folder, DatasetHeader header, const DatasetLimits& limits,
                    UniqueFd journal, size_t journal_bytes)
      : name_(std::move(name)),
        folder_(std::move(folder)),
        header_(std::move(header)),
        limits_(limits),
        journal_(std::move(journal)),
        journal_bytes_(static_cast<int64_t>(journal_bytes)) {}

  std::string PathOf(const std::string& path) const;
  absl::Status CheckTurn(uint64_t turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::Status CheckNotTakenOver(uint64_t turn) const;
  absl::Status CheckRoom() const;
  absl::Status Load(absl::string_view journal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  void RemoveStrays();

  // The file as it was announced, which is there from then on.
  absl::Status Announce(const v1::DatasetFile& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  // Makes the file, and the journal tells of it.
  absl::Status Place(const v1::DatasetFile& file, bool is_new) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  // Of the folders that a file of this path lies in, those that hold none of the others.
  int64_t OwnFolders(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_);
  absl::Status CheckAnnounced(const v1::DatasetFile& file, const File* known) const;
  // What counts for a new file whatever its size.
  absl::Status TakeEntry(const std::string& path);
  void GiveBackEntry(const std::string& path);
  absl::StatusOr<UniqueFd> OpenFile(const std::string& path) const;
  absl::Status WriteLine(const v1::DatasetFile& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  // Opens the file begun last, to go on there.
  absl::Status GoTo(uint64_t turn, int64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::Status CutTo(const std::string& path, int fd, int64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::Status FinishFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::Status CheckFile(uint64_t turn, const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::Status CheckWhole(uint64_t turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work_);
  absl::StatusOr<DatasetHeader> WriteManifest();

  File Get(const std::string& path) const;
  void SetReceived(const std::string& path, int64_t received, bool checked);

  const std::string name_;
  const std::string folder_;
  const DatasetHeader header_;
  const DatasetLimits limits_;

  // Held by whoever changes files; taken before state_.
  Mutex work_;
  bool ended_ ABSL_GUARDED_BY(work_) = false;
  UniqueFd journal_ ABSL_GUARDED_BY(work_);
  int64_t journal_bytes_ ABSL_GUARDED_BY(work_) = 0;
  // The file begun last.
  std::string path_ ABSL_GUARDED_BY(work_);
  UniqueFd fd_ ABSL_GUARDED_BY(work_);
  int64_t at_ ABSL_GUARDED_BY(work_) = 0;
  Sha256Stream digest_ ABSL_GUARDED_BY(work_);

  mutable Mutex state_;
  uint64_t turn_ ABSL_GUARDED_BY(state_) = 0;
  std::map<std::string, File> files_ ABSL_GUARDED_BY(state_);
  int64_t announced_bytes_ ABSL_GUARDED_BY(state_) = 0;
  int64_t received_bytes_ ABSL_GUARDED_BY(state_) = 0;
  // As counted in limits_.journals.
  int64_t entry_bytes_ ABSL_GUARDED_BY(state_) = 0;
  // Files whose entries count in limits_.all.
  int64_t counted_files_ ABSL_GUARDED_BY(state_) = 0;
  // That the files lie in, and those above them.
  int64_t folders_ ABSL_GUARDED_BY(state_) = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_UNFINISHED_DATASET_H_
