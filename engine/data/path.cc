#include "engine/data/path.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

std::string RootList(absl::Span<const std::string> roots) {
  if (roots.empty()) return "no data root is configured";
  return absl::StrCat("data roots: ", absl::StrJoin(roots, ", "));
}

absl::Status Denied(absl::string_view path, absl::string_view why, absl::Span<const std::string> roots) {
  return absl::PermissionDeniedError(absl::StrCat(path, ": ", why, " (", RootList(roots), ")"));
}

// Whether `path` is a proper descendant of `root`; both absolute. "/" is above everything.
bool IsBeneath(absl::string_view path, absl::string_view root) {
  while (absl::ConsumeSuffix(&root, "/")) {
  }
  return absl::ConsumePrefix(&path, root) && path.size() > 1 && path.front() == '/';
}

// The real path of `path`, or empty when it has none.
std::string RealPath(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return "";
  std::string result(real);
  std::free(real);
  return result;
}

// Where the file behind a descriptor lies now, or empty when that cannot be told.
std::string PathOfDescriptor(int fd) {
  char target[PATH_MAX];
  const ssize_t n = ::readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target));
  if (n <= 0 || n == static_cast<ssize_t>(sizeof(target))) return "";
  return std::string(target, static_cast<size_t>(n));
}

// A descriptor that only names a file (O_PATH): opening it has no effect on a device and does not block on a FIFO.
class PathDescriptor {
 public:
  explicit PathDescriptor(const std::string& path) : fd_(::open(path.c_str(), O_PATH | O_CLOEXEC)) {}
  ~PathDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  PathDescriptor(const PathDescriptor&) = delete;
  PathDescriptor& operator=(const PathDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status CheckSpelling(absl::string_view path, absl::Span<const std::string> roots) {
  if (path.empty()) return absl::InvalidArgumentError("a dataset's path is empty");
  if (absl::StrContains(path, absl::string_view("\0", 1))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a path cannot contain a zero byte"));
  }
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return Denied(path, "'..' is not allowed in a dataset's path", roots);
  }
  return absl::OkStatus();
}

// The places where `path` may lie. An absolute path has one, and none when it is outside the roots.
std::vector<std::string> Candidates(absl::string_view path, absl::Span<const std::string> roots) {
  std::vector<std::string> candidates;
  if (path.front() == '/') {
    for (const std::string& root : roots) {
      const std::string real = RealPath(root);
      if (IsBeneath(path, root) || (!real.empty() && IsBeneath(path, real))) return {std::string(path)};
    }
    return {};
  }
  for (const std::string& root : roots) candidates.push_back(absl::StrCat(root, "/", path));
  return candidates;
}

bool LiesBeneathAny(const std::string& real_path, absl::Span<const std::string> roots) {
  if (real_path.empty()) return false;
  for (const std::string& root : roots) {
    const std::string real_root = RealPath(root);
    if (!real_root.empty() && IsBeneath(real_path, real_root)) return true;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<const InputFile>> OpenChecked(int path_fd, absl::string_view path,
                                                             absl::Span<const std::string> roots) {
  if (!LiesBeneathAny(PathOfDescriptor(path_fd), roots)) return Denied(path, "leads outside the data roots", roots);
  struct stat st = {};
  if (::fstat(path_fd, &st) != 0) return Denied(path, std::strerror(errno), roots);
  if (S_ISDIR(st.st_mode)) return Denied(path, "is a folder, not a file", roots);
  if (!S_ISREG(st.st_mode)) return Denied(path, "is not a regular file", roots);
  const int fd = ::open(absl::StrCat("/proc/self/fd/", path_fd).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Denied(path, absl::StrCat("cannot be opened: ", std::strerror(errno)), roots);
  return std::make_shared<const InputFile>(fd, std::string(path), st.st_size);
}

bool IsFolder(int folder_fd, const dirent& entry) {
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat st = {};
  return ::fstatat(folder_fd, entry.d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

absl::StatusOr<std::vector<FolderEntry>> ListChecked(int path_fd, absl::string_view path,
                                                     absl::Span<const std::string> roots) {
  if (!LiesBeneathAny(PathOfDescriptor(path_fd), roots)) return Denied(path, "leads outside the data roots", roots);
  struct stat st = {};
  if (::fstat(path_fd, &st) != 0) return Denied(path, std::strerror(errno), roots);
  if (!S_ISDIR(st.st_mode)) return Denied(path, "is not a folder", roots);
  DIR* folder = ::opendir(absl::StrCat("/proc/self/fd/", path_fd).c_str());
  if (folder == nullptr) return Denied(path, absl::StrCat("cannot be opened: ", std::strerror(errno)), roots);
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> owner(folder, close);
  std::vector<FolderEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') entries.push_back({entry->d_name, IsFolder(::dirfd(folder), *entry)});
    errno = 0;
  }
  if (errno != 0) return absl::DataLossError(absl::StrCat(path, ": cannot be listed: ", std::strerror(errno)));
  std::sort(entries.begin(), entries.end(), [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

// Hands the first root's file or folder to `open`, by a descriptor that only names it.
template <typename Open>
auto Find(absl::string_view path, absl::Span<const std::string> roots, absl::string_view what, Open open)
    -> decltype(open(0, path, roots)) {
  AMPD_RETURN_IF_ERROR(CheckSpelling(path, roots));
  const std::vector<std::string> candidates = Candidates(path, roots);
  if (candidates.empty() && !roots.empty()) return Denied(path, "lies outside the data roots", roots);
  for (const std::string& candidate : candidates) {
    const PathDescriptor fd(candidate);
    if (fd.get() >= 0) return open(fd.get(), path, roots);
    if (errno != ENOENT && errno != ENOTDIR) return Denied(path, std::strerror(errno), roots);
  }
  return absl::NotFoundError(absl::StrCat(path, ": no such ", what, " (", RootList(roots), ")"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const InputFile>> OpenBeneath(absl::string_view path,
                                                             absl::Span<const std::string> roots) {
  return Find(path, roots, "file", OpenChecked);
}

absl::StatusOr<std::vector<FolderEntry>> ListBeneath(absl::string_view path, absl::Span<const std::string> roots) {
  return Find(path, roots, "folder", ListChecked);
}

}  // namespace ampd::data
