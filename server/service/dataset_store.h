// Datasets that clients sent, for specs to name. FOLDER/NAME is one that is whole: its `files`, which never change, and
// a MANIFEST. FOLDER/.new/NAME is one that is being uploaded.
#ifndef AMPD_SERVER_SERVICE_DATASET_STORE_H_
#define AMPD_SERVER_SERVICE_DATASET_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"
#include "server/files/byte_budget.h"
#include "server/files/file_sharing.h"
#include "server/files/files.h"
#include "server/service/unfinished_dataset.h"

namespace ampd {

// Thread safe. What asks (List), holds (HoldAll, ~Hold) or begins to delete (BeginDeletion) never waits for the disk,
// so that it may be called on a thread that must not; all the rest blocks on it.
class DatasetStore {
 public:
  struct Options {
    // Made where it is missing. One store owns it.
    std::string folder;
    DatasetLimits limits;
    // Uploads that one user may have begun and not ended; users that are not told apart are bounded together alone.
    size_t unfinished_per_user = 16;
    // Likewise datasets of one user, whole or not: a tenth of what there may be in all.
    size_t datasets_per_user = 1000;
    // Of the files of one user's datasets, whole or not, likewise, each with its limits.entry_bytes; 0: no limit but
    // that of all.
    int64_t bytes_per_user = 0;
    const Clock* clock = &SystemClock();
    // Told, in words, what of an earlier daemon's was damaged. May be empty.
    std::function<void(const std::string&)> log;
    // They can read what is whole.
    FileSharing workers;
    // Forces a folder's list of names to disk.
    std::function<absl::Status(const std::string& path)> sync_folder = SyncFolder;
  };

  // Who sends a dataset. Another that begins to send the same takes over.
  class Upload {
   public:
    absl::Status BeginFile(const v1::DatasetFile& file, int64_t offset) {
      return dataset_->BeginFile(turn_, file, offset);
    }
    absl::Status Append(int64_t offset, absl::string_view bytes) { return dataset_->Append(turn_, offset, bytes); }
    // The dataset is whole, and has its name; without files. UnfinishedDataset::Commit's errors; another one where it
    // is whole but its name may not survive a power cut.
    absl::StatusOr<v1::Dataset> Commit();
    // Without files.
    v1::Dataset Describe() const { return dataset_->Describe(false); }

   private:
    friend class DatasetStore;
    Upload(DatasetStore* store, std::string name, std::shared_ptr<UnfinishedDataset> dataset)
        : store_(store), name_(std::move(name)), dataset_(std::move(dataset)), turn_(dataset_->TakeTurn()) {}

    DatasetStore* const store_;
    const std::string name_;
    const std::shared_ptr<UnfinishedDataset> dataset_;
    const uint64_t turn_;
  };

  // While it lives the datasets cannot be deleted.
  class Hold {
   public:
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    // By name, what they contain: SHA-256 of the paths, sizes and checksums of their files.
    const std::map<std::string, std::string>& contents() const { return contents_; }

   private:
    friend class DatasetStore;
    Hold(DatasetStore* store, std::map<std::string, std::string> contents)
        : store_(store), contents_(std::move(contents)) {}
    DatasetStore* const store_;
    const std::map<std::string, std::string> contents_;
  };

  // One dataset that nobody can hold any more. Not thread safe.
  class Deletion {
   public:
    // Gives it up, where it was not finished.
    ~Deletion() { GiveUp(); }
    Deletion(const Deletion&) = delete;
    Deletion& operator=(const Deletion&) = delete;

    // Gone once this returns, and the name is free; its files are as far as the disk allows. Once.
    absl::Status Finish();
    // It stays, and may be held again. Harmless after Finish.
    void GiveUp();

   private:
    friend class DatasetStore;
    Deletion(DatasetStore* store, std::string name) : store_(store), name_(std::move(name)) {}
    DatasetStore* const store_;
    const std::string name_;
    bool over_ = false;
  };

  // Takes away what an earlier daemon left half-made.
  static absl::StatusOr<std::unique_ptr<DatasetStore>> Open(Options options);

  const std::string& folder() const { return options_.folder; }

  // Begins, or goes on with, an upload, which is `user`'s; empty: users are not told apart, and any upload can go on.
  // INVALID_ARGUMENT for a bad name; ALREADY_EXISTS when a whole or damaged dataset has it; PERMISSION_DENIED when
  // another user began it; ABORTED, with google.rpc.RetryInfo, while it is being deleted; RESOURCE_EXHAUSTED when there
  // are too many, of all or of the user, or no room. This outlives the upload.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const std::string& name, const std::string& user);

  // By name, whole and not, without files.
  std::vector<v1::Dataset> List() const;
  // With its files. NOT_FOUND; DATA_LOSS, naming it, when its MANIFEST is damaged.
  absl::StatusOr<v1::Dataset> Get(const std::string& name) const;

  // Keeps whole datasets from being deleted. NOT_FOUND, naming it and saying whether it is being uploaded, where one is
  // not there; DATA_LOSS where one is damaged; ABORTED, with google.rpc.RetryInfo, while one may be about to go. This
  // outlives what it returns.
  absl::StatusOr<std::shared_ptr<Hold>> HoldAll(const std::set<std::string>& names);

  // Of a dataset that is whole or not, or damaged. NOT_FOUND; PERMISSION_DENIED where it is not `owner`'s, nullopt
  // being everybody; FAILED_PRECONDITION while it is held; ABORTED, with google.rpc.RetryInfo, while another deletes
  // it.
  absl::StatusOr<std::shared_ptr<Deletion>> BeginDeletion(const std::string& name,
                                                          const std::optional<std::string>& owner);

 private:
  // Of a folder that has its name.
  struct Whole {
    DatasetHeader header;
    // Why it cannot be used; empty: it can. Its header then tells its size and files alone.
    std::string damage;
  };

  static v1::Dataset DamagedDataset(const std::string& name, const Whole& whole);
  explicit DatasetStore(Options options)
      : options_(std::move(options)),
        budgets_(options_.bytes_per_user, "max_dataset_bytes_per_user", options_.limits.all) {}
  // What a whole one counts.
  int64_t CountedBytes(const DatasetHeader& header) const {
    return header.size_bytes + header.file_count * options_.limits.entry_bytes;
  }
  std::string PathOf(const std::string& name) const;
  std::string NewPathOf(const std::string& name) const;
  absl::Status Load();
  void LoadWhole(const std::string& name);
  void LoadUnfinished(const std::string& name);
  // With what a user's bytes count in.
  DatasetLimits LimitsOf(const std::string& user);
  // Null: there is none, and it may be made.
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> FindBegun(const std::string& name, const std::string& user) const;
  absl::Status CheckRoomForOneMore(const std::string& user) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> FindOrCreate(const std::string& name, const std::string& user);
  // Empty: of no user.
  std::string UserOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Renames a dataset's folder; nothing is replaced.
  absl::Status MoveFolder(const std::string& from, const std::string& to, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(folders_);
  // Gives the folder of an unfinished one its name. `synced`: whether that is on disk.
  absl::Status Publish(const std::string& name, const DatasetHeader& header, absl::Status* synced);
  // Takes the dataset's folder, and what is known of it, out of the way, to `aside`.
  absl::Status MoveAside(const std::string& name, const std::string& aside);
  void Log(const std::string& text) const;

  const Options options_;
  // Itself thread safe.
  UserBudgets budgets_;
  // Held by whoever makes, renames or removes a dataset's folder, to which the disk may take its time; taken before
  // mutex_, which nobody holds while the disk works: the controller's thread takes it.
  Mutex folders_;
  mutable Mutex mutex_;
  std::map<std::string, Whole> whole_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<UnfinishedDataset>> unfinished_ ABSL_GUARDED_BY(mutex_);
  // How often each is held.
  std::map<std::string, int> held_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> deleting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DATASET_STORE_H_
