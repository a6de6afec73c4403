#include "server/files/file_sharing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/files.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

constexpr mode_t kOwner = 0700, kGroupReads = 0040, kGroupPasses = 0010, kAllPass = 0001;

struct stat LookAt(int parent, const std::string& name, int* error) {
  struct stat info {};
  *error = fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  return info;
}

UniqueFd OpenIn(int parent, const std::string& name, int flags) {
  return UniqueFd(openat(parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags));
}

// Of an open folder.
std::vector<std::string> NamesIn(int folder) {
  std::vector<std::string> names;
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = copy < 0 ? nullptr : fdopendir(copy);
  if (listing == nullptr) return names;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(listing);
  return names;
}

absl::Status SetGroup(int fd, gid_t gid, mode_t mode, const std::string& path) {
  if (fchown(fd, static_cast<uid_t>(-1), gid) != 0 || fchmod(fd, mode) != 0) {
    return FileError(absl::StrCat("let workers into ", path), errno);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FileSharing::LetPass(const std::string& folder) const {
  if (!with_) return absl::OkStatus();
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return FileError(folder, errno);
  const bool passes = (info.st_mode & kAllPass) != 0 || (info.st_gid == with_->gid && (info.st_mode & kGroupPasses));
  if (passes) return absl::OkStatus();
  return SetGroup(fd.get(), with_->gid, (info.st_mode & kOwner) | kGroupPasses, folder);
}

absl::Status FileSharing::LetConnect(const std::string& path) const {
  if (!with_) return absl::OkStatus();
  if (lchown(path.c_str(), static_cast<uid_t>(-1), with_->gid) == 0 && chmod(path.c_str(), 0660) == 0) {
    return absl::OkStatus();
  }
  return FileError(absl::StrCat("let workers connect to ", path), errno);
}

absl::Status FileSharing::LetRead(const std::string& path) const {
  return with_ ? ShareIn(AT_FDCWD, path, path) : absl::OkStatus();
}

// Folders last: until then nobody else sees what is in them.
absl::Status FileSharing::ShareIn(int parent, const std::string& name, const std::string& path) const {
  int error = 0;
  const struct stat seen = LookAt(parent, name, &error);
  if (error != 0) return FileError(path, error);
  const bool is_folder = S_ISDIR(seen.st_mode);
  if ((!is_folder && !S_ISREG(seen.st_mode)) || seen.st_uid != geteuid()) return absl::OkStatus();
  const UniqueFd fd = OpenIn(parent, name, is_folder ? O_DIRECTORY : 0);
  if (!fd.valid()) return FileError(path, errno);
  if (is_folder) {
    for (const std::string& child : NamesIn(fd.get())) {
      AMPD_RETURN_IF_ERROR(ShareIn(fd.get(), child, absl::StrCat(path, "/", child)));
    }
  }
  const mode_t group = is_folder ? kGroupReads | kGroupPasses : kGroupReads;
  return SetGroup(fd.get(), with_->gid, (seen.st_mode & kOwner) | group, path);
}

absl::Status FileSharing::Give(const std::string& folder) const {
  if (!with_) return absl::OkStatus();
  int error = 0;
  const struct stat seen = LookAt(AT_FDCWD, folder, &error);
  if (error != 0) return FileError(folder, error);
  if (seen.st_uid != with_->uid && seen.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is user ", seen.st_uid, "'s, and workers are user ",
                                                      with_->uid, ": chown it, with all that is in it"));
  }
  return GiveIn(AT_FDCWD, folder, folder);
}

absl::Status FileSharing::GiveIn(int parent, const std::string& name, const std::string& path) const {
  int error = 0;
  const struct stat seen = LookAt(parent, name, &error);
  // Gone: its owner may have been at work.
  if (error == ENOENT) return absl::OkStatus();
  if (error != 0) return FileError(path, error);
  if (S_ISDIR(seen.st_mode)) {
    const UniqueFd fd = OpenIn(parent, name, O_DIRECTORY);
    if (!fd.valid()) return errno == ENOENT ? absl::OkStatus() : FileError(path, errno);
    for (const std::string& child : NamesIn(fd.get())) {
      AMPD_RETURN_IF_ERROR(GiveIn(fd.get(), child, absl::StrCat(path, "/", child)));
    }
  }
  if (seen.st_uid != geteuid()) return absl::OkStatus();
  if (fchownat(parent, name.c_str(), with_->uid, with_->gid, AT_SYMLINK_NOFOLLOW) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  return FileError(absl::StrCat("give ", path, " to the workers"), errno);
}

absl::Status FileSharing::LetReadAllIn(const std::string& folder) const {
  if (!with_) return absl::OkStatus();
  const UniqueFd fd = OpenIn(AT_FDCWD, folder, O_DIRECTORY);
  if (!fd.valid()) return errno == ENOENT ? absl::OkStatus() : FileError(folder, errno);
  for (const std::string& name : NamesIn(fd.get())) {
    int error = 0;
    const struct stat seen = LookAt(fd.get(), name, &error);
    const bool shared = seen.st_gid == with_->gid && (seen.st_mode & kGroupReads) != 0;
    if (error != 0 || name[0] == '.' || shared) continue;
    AMPD_RETURN_IF_ERROR(ShareIn(fd.get(), name, absl::StrCat(folder, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace ampd
