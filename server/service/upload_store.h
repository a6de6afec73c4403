// Model files that clients sent, by the SHA-256 of their bytes: folder/<sha256>; the user who sent it first, whose
// limit it counts in, is in folder/.<sha256>.user. When one was last used is the time of its last change, on disk.
#ifndef AMPD_SERVER_SERVICE_UPLOAD_STORE_H_
#define AMPD_SERVER_SERVICE_UPLOAD_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/files/byte_budget.h"
#include "server/files/file_sharing.h"
#include "server/files/unique_fd.h"
#include "server/service/sha256.h"

namespace ampd {

// Thread safe; every function blocks on the disk.
class UploadStore {
 public:
  struct Limits {
    // Of one file.
    int64_t file_bytes = int64_t{4} << 30;
    // Of all together, those that are under way included, and whatever else counts there.
    std::shared_ptr<ByteBudget> all = std::make_shared<ByteBudget>(int64_t{64} << 30);
    // Of one user's, likewise, of users that are told apart; 0: no limit but that of all.
    int64_t bytes_per_user = 0;
    // As DatasetLimits::shortage.
    std::function<std::string()> shortage;
    // What one takes beside its bytes, under way or not, for its two names and what is in the second; or any number of
    // empty ones would be free.
    int64_t entry_bytes = 10 << 10;
  };

  // A file under way; what was written of it goes with this object. Not thread safe.
  class Upload {
   public:
    ~Upload();
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;

    // RESOURCE_EXHAUSTED beyond a limit, naming it, or when the disk is full or short of room.
    absl::Status Append(absl::string_view bytes);
    // Forces the file to disk and gives it its name; its size in bytes. INVALID_ARGUMENT, with both checksums, when the
    // bytes do not have the one announced; RESOURCE_EXHAUSTED when the disk is full. Once.
    absl::StatusOr<int64_t> Finish();

   private:
    friend class UploadStore;
    // `budget` has counted its entry.
    Upload(UploadStore* store, std::string checksum, std::string user, std::shared_ptr<ByteBudget> budget,
           std::string path, UniqueFd fd);

    UploadStore* const store_;
    const std::string checksum_;
    const std::string user_;
    const std::shared_ptr<ByteBudget> budget_;
    const std::string path_;
    UniqueFd fd_;
    Sha256Stream digest_;
    int64_t bytes_ = 0;
    bool kept_ = false;
  };

  // Makes `folder` where it is missing, and removes what an earlier daemon left half-written there. One store owns its
  // folder. `workers` can read what is whole.
  static absl::StatusOr<std::unique_ptr<UploadStore>> Open(const std::string& folder, const Limits& limits,
                                                           const FileSharing& workers = {});

  const std::string& folder() const { return folder_; }

  // The size in bytes of the file with this checksum; nullopt when there is none. Anything but 64 lower-case hex digits
  // is no checksum.
  std::optional<int64_t> Size(const std::string& checksum) const;

  // As Size, of one that is to be used: it counts as used now.
  std::optional<int64_t> Use(const std::string& checksum);

  // Those last used before `before`. None when the folder cannot be read.
  std::set<std::string> UnusedSince(absl::Time before) const;
  // Removes those of `checksums` that were not used since `before` either; what was removed.
  std::vector<std::string> RemoveUnused(const std::set<std::string>& checksums, absl::Time before);

  // By `user`; empty: users are not told apart. INVALID_ARGUMENT for what is no checksum; RESOURCE_EXHAUSTED while the
  // disk is short of room, and where one more is beyond a limit, naming it. This outlives the upload.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const std::string& checksum, const std::string& user);

 private:
  UploadStore(std::string folder, const Limits& limits, const FileSharing& workers)
      : folder_(std::move(folder)),
        limits_(limits),
        budgets_(limits.bytes_per_user, "max_model_bytes_per_user", limits.all),
        workers_(workers) {}
  std::string PathOf(const std::string& checksum) const;
  // False: it is in use by now, or not there.
  bool RemoveIfUnused(const std::string& checksum, absl::Time before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_);
  bool IsUnusedSince(const std::string& checksum, absl::Time before) const;
  absl::Status CheckRoom() const;
  // Of the budget; what is in the way is told.
  static absl::Status Take(ByteBudget& budget, int64_t bytes);
  absl::Status Reserve(ByteBudget& budget, int64_t file_bytes, int64_t more);
  // Gives it its name. False: the same file is there by now.
  absl::StatusOr<bool> Publish(const std::string& path, const std::string& checksum, const std::string& user);
  std::string UserPathOf(const std::string& checksum) const;
  // Empty: of no user, or it is not known.
  std::string UserOf(const std::string& checksum) const;

  const std::string folder_;
  const Limits limits_;
  // Itself thread safe.
  UserBudgets budgets_;
  const FileSharing workers_;
  // Held by whoever gives a file its name, says that it is used, or removes one that is not.
  Mutex use_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_UPLOAD_STORE_H_
