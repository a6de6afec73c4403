#include "engine/data/path.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"

namespace ampd::data {
namespace {

std::string RootList(absl::Span<const std::string> roots) {
  if (roots.empty()) return "no data root is configured";
  return absl::StrCat("data roots: ", absl::StrJoin(roots, ", "));
}

absl::Status Denied(absl::string_view path, absl::string_view why, absl::Span<const std::string> roots) {
  if (NamesDataset(path)) return absl::PermissionDeniedError(absl::StrCat(path, ": ", why));
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
  explicit PathDescriptor(int fd) : fd_(fd) {}
  static PathDescriptor Of(const std::string& path) { return PathDescriptor(::open(path.c_str(), O_PATH | O_CLOEXEC)); }
  // `path` from `folder` on, resolved by the kernel, which leaves the folder under no circumstances; errno is EXDEV
  // where the path would, and one of LacksOpenat2() where the kernel cannot.
  static PathDescriptor Beneath(const PathDescriptor& folder, const std::string& path, uint64_t more_rules = 0) {
    open_how how = {};
    how.flags = O_PATH | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | more_rules;
    int fd = -1;
    // EAGAIN: something was renamed meanwhile.
    for (int tries = 0; tries < 100; ++tries) {
      fd = static_cast<int>(::syscall(SYS_openat2, folder.get(), path.c_str(), &how, sizeof(how)));
      if (fd >= 0 || errno != EAGAIN) break;
    }
    return PathDescriptor(fd);
  }
  ~PathDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  PathDescriptor(PathDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PathDescriptor& operator=(PathDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// EPERM: of containers that do not let it through.
bool LacksOpenat2(int error) { return error == ENOSYS || error == EPERM || error == E2BIG; }

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

// What is left of the absolute `path` beneath `root`; nullopt when it does not lie there.
std::optional<std::string> WithinRoot(absl::string_view path, const std::string& root) {
  for (const std::string& spelling : {root, RealPath(root)}) {
    if (spelling.empty() || !IsBeneath(path, spelling)) continue;
    const size_t size = absl::StripSuffix(spelling, "/").size();
    return std::string(absl::StripPrefix(path.substr(size), "/"));
  }
  return std::nullopt;
}

struct Candidate {
  std::string root;
  // From there.
  std::string path;
};

// The places where `path` may lie. An absolute path has one, and none when it is outside the roots.
std::vector<Candidate> Candidates(absl::string_view path, absl::Span<const std::string> roots) {
  std::vector<Candidate> candidates;
  for (const std::string& root : roots) {
    if (path.front() != '/') {
      candidates.push_back({root, std::string(path)});
    } else if (const std::optional<std::string> within = WithinRoot(path, root)) {
      return {{root, *within}};
    }
  }
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

// `roots` empty: the kernel saw to it.
absl::Status CheckPlace(int path_fd, absl::string_view path, absl::Span<const std::string> roots) {
  if (roots.empty() || LiesBeneathAny(PathOfDescriptor(path_fd), roots)) return absl::OkStatus();
  return Denied(path, "leads outside the data roots", roots);
}

absl::StatusOr<std::shared_ptr<const InputFile>> OpenChecked(int path_fd, absl::string_view path,
                                                             absl::Span<const std::string> roots) {
  AMPD_RETURN_IF_ERROR(CheckPlace(path_fd, path, roots));
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
  AMPD_RETURN_IF_ERROR(CheckPlace(path_fd, path, roots));
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

// Where the link-free way to what `named` names lies beneath one of the roots, opened anew along that way; what a link
// led to need not be where it was a moment ago. No file, with errno EXDEV, where it lies beneath none.
PathDescriptor AlongARoot(const PathDescriptor& named, absl::Span<const std::string> roots) {
  const std::string real = PathOfDescriptor(named.get());
  for (const std::string& root : roots) {
    const std::optional<std::string> within = WithinRoot(real, root);
    if (!within) continue;
    PathDescriptor fd = PathDescriptor::Beneath(PathDescriptor::Of(root), *within, RESOLVE_NO_SYMLINKS);
    if (fd.get() >= 0 || !LacksOpenat2(errno)) return fd;
  }
  errno = EXDEV;
  return PathDescriptor(-1);
}

PathDescriptor Open(const Candidate& candidate, absl::Span<const std::string> roots) {
  const PathDescriptor root = PathDescriptor::Of(candidate.root);
  if (root.get() < 0) return PathDescriptor(-1);
  PathDescriptor fd = PathDescriptor::Beneath(root, candidate.path);
  if (fd.get() >= 0) return fd;
  const bool cannot = LacksOpenat2(errno);
  if (!cannot && errno != EXDEV) return fd;
  // A link out of this root may lead into another one, or back. Without openat2 this is what OpenChecked looks at.
  PathDescriptor named = PathDescriptor::Of(absl::StrCat(candidate.root, "/", candidate.path));
  return cannot || named.get() < 0 ? std::move(named) : AlongARoot(named, roots);
}

// Of an uploaded dataset.
PathDescriptor OpenInDataset(const DatasetPath& path, const std::string& folder) {
  const std::string files = DatasetFilesFolder(folder, path.name);
  const PathDescriptor base = PathDescriptor::Of(files);
  if (base.get() < 0) return PathDescriptor(-1);
  const std::string within = path.path.empty() ? "." : path.path;
  PathDescriptor fd = PathDescriptor::Beneath(base, within, RESOLVE_NO_SYMLINKS);
  if (fd.get() >= 0 || !LacksOpenat2(errno)) return fd;
  PathDescriptor named = PathDescriptor::Of(absl::StrCat(files, "/", within));
  if (named.get() < 0) return named;
  const std::string expected = absl::StrCat(RealPath(files), path.path.empty() ? "" : "/", path.path);
  if (PathOfDescriptor(named.get()) == expected) return named;
  errno = ELOOP;
  return PathDescriptor(-1);
}

// As Find, of "dataset:NAME/PATH".
template <typename Use>
auto FindInDatasets(absl::string_view path, absl::Span<const std::string> roots, absl::string_view what, Use use)
    -> decltype(use(0, path, roots)) {
  AMPD_ASSIGN_OR_RETURN(const DatasetPath parsed, ParseDatasetPath(path));
  for (const std::string& root : roots) {
    const std::optional<std::string> folder = FolderOfDatasetRoot(root);
    if (!folder) continue;
    const PathDescriptor fd = OpenInDataset(parsed, *folder);
    if (fd.get() >= 0) return use(fd.get(), path, {});
    if (errno == ELOOP || errno == EXDEV) return Denied(path, "is, or lies behind, a symbolic link", {});
    if (errno != ENOENT && errno != ENOTDIR) return Denied(path, std::strerror(errno), {});
  }
  return absl::NotFoundError(absl::StrCat(path, ": no such ", what, " was uploaded"));
}

std::vector<std::string> PlainRoots(absl::Span<const std::string> roots) {
  std::vector<std::string> plain;
  for (const std::string& root : roots) {
    if (!FolderOfDatasetRoot(root)) plain.push_back(root);
  }
  return plain;
}

// Hands the first root's file or folder to `open`, by a descriptor that only names it and that lies beneath a root;
// with the roots, or with none where that need not be looked at again.
template <typename Use>
auto Find(absl::string_view path, absl::Span<const std::string> all_roots, absl::string_view what, Use use)
    -> decltype(use(0, path, all_roots)) {
  if (NamesDataset(path)) return FindInDatasets(path, all_roots, what, use);
  const std::vector<std::string> roots = PlainRoots(all_roots);
  AMPD_RETURN_IF_ERROR(CheckSpelling(path, roots));
  const std::vector<Candidate> candidates = Candidates(path, roots);
  if (candidates.empty() && !roots.empty()) return Denied(path, "lies outside the data roots", roots);
  for (const Candidate& candidate : candidates) {
    const PathDescriptor fd = Open(candidate, roots);
    if (fd.get() >= 0) return use(fd.get(), path, roots);
    if (errno == EXDEV) return Denied(path, "leads outside the data roots", roots);
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
