// What workers that run as another user may do with the daemon's files.
#ifndef AMPD_SERVER_FILES_FILE_SHARING_H_
#define AMPD_SERVER_FILES_FILE_SHARING_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace ampd {

// Lets one user reach files of this process's user, by their owner, group and mode. Only what this process's user owns
// is changed: never what a link leads to, nor what somebody else made. The errors are the file system's, with the path.
// Thread safe.
class FileSharing {
 public:
  // With nobody: the workers are this process's own user, and every function does nothing.
  FileSharing() = default;
  // `gid`: the user's own group, whose other members get as far as the user does in what is read.
  FileSharing(uid_t uid, gid_t gid) : with_(Ids{uid, gid}) {}

  bool with_another() const { return with_.has_value(); }

  // They may go through the folder to what they know the name of, and see nothing of it. A link to a folder will do.
  absl::Status LetPass(const std::string& folder) const;
  // They may connect to the socket.
  absl::Status LetConnect(const std::string& path) const;
  // They may read the file, or the folder with all that is in it, and change nothing.
  absl::Status LetRead(const std::string& path) const;
  // The folder and all that is in it become theirs. FAILED_PRECONDITION where it belongs to a third user.
  absl::Status Give(const std::string& folder) const;

  // LetRead() of whatever in `folder` is not readable to them: of files that were made for workers of another user.
  // Names that begin with '.' are passed over. A missing folder is empty.
  absl::Status LetReadAllIn(const std::string& folder) const;

 private:
  struct Ids {
    uid_t uid;
    gid_t gid;
  };
  absl::Status ShareIn(int parent, const std::string& name, const std::string& path) const;
  absl::Status GiveIn(int parent, const std::string& name, const std::string& path) const;

  std::optional<Ids> with_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_FILE_SHARING_H_
