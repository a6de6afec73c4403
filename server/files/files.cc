#include "server/files/files.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCopyBytes = 1 << 18;

absl::Status Copy(int from, const std::string& target) {
  const UniqueFd to(open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!to.valid()) return FileError(target, errno);
  std::vector<char> buffer(kCopyBytes);
  for (off_t offset = 0;;) {
    const ssize_t n = pread(from, buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(absl::StrCat("read for ", target), errno);
    if (n == 0) break;
    AMPD_RETURN_IF_ERROR(WriteAll(to.get(), {buffer.data(), static_cast<size_t>(n)}, target));
    offset += n;
  }
  return fsync(to.get()) == 0 ? absl::OkStatus() : FileError(target, errno);
}

absl::Status SyncNameOf(const fs::path& folder) {
  const absl::Status synced = SyncFolder(folder.has_parent_path() ? folder.parent_path().string() : ".");
  // EINVAL and ENOTSUP of file systems, EACCES and EPERM, and EROFS of one in which nothing was made.
  const bool cannot =
      absl::IsInvalidArgument(synced) || absl::IsUnimplemented(synced) || absl::IsPermissionDenied(synced);
  return cannot ? absl::OkStatus() : synced;
}

}  // namespace

absl::Status FileError(absl::string_view what, int error) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = absl::StatusCode::kResourceExhausted;
  // Not to be taken for a full disk, which pauses jobs.
  if (error == EMFILE || error == ENFILE) code = absl::StatusCode::kUnavailable;
  return absl::Status(code, absl::StrCat(what, ": ", strerror(error)));
}

absl::Status SyncFolder(const std::string& path) {
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || fsync(folder.get()) != 0) return FileError(path, errno);
  return absl::OkStatus();
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> named = {path};
  for (fs::path above = fs::path(path).parent_path(); !above.empty() && !fs::exists(above, error);
       above = above.parent_path()) {
    named.push_back(above);
  }
  fs::create_directories(path, error);
  if (error) return FileError(absl::StrCat("cannot make the folder ", path), error.value());
  for (const fs::path& folder : named) AMPD_RETURN_IF_ERROR(SyncNameOf(folder));
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status LinkOrCopy(int fd, const std::string& target) {
  // What the descriptor reads, whatever has its name by now.
  const std::string source = absl::StrCat("/proc/self/fd/", fd);
  if (linkat(AT_FDCWD, source.c_str(), AT_FDCWD, target.c_str(), AT_SYMLINK_FOLLOW) == 0) return absl::OkStatus();
  if (errno == EEXIST) return FileError(target, errno);
  return Copy(fd, target);
}

}  // namespace ampd
