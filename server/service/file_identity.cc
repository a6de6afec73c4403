#include "server/service/file_identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEntries = 20000;

class Collector {
 public:
  explicit Collector(bool links_change) : links_change_(links_change) {}

  // False: it cannot be told.
  bool Add(const std::string& path) {
    struct stat info {};
    if (++entries_ > kMaxEntries) return false;
    if (stat(path.c_str(), &info) != 0) {
      absl::StrAppend(&text_, errno, "\n");
      return true;
    }
    Append(info);
    return !S_ISDIR(info.st_mode) || AddFolder(path);
  }

  FileIdentity Take() && { return {std::move(text_), newest_}; }

 private:
  void Append(const struct stat& info) {
    const absl::Time modified = absl::TimeFromTimespec(info.st_mtim);
    const absl::Time changed = links_change_ ? absl::TimeFromTimespec(info.st_ctim) : modified;
    newest_ = std::max(newest_, changed);
    absl::StrAppend(&text_, info.st_dev, " ", info.st_ino, " ", info.st_mode & S_IFMT, " ", info.st_size, " ",
                    absl::ToUnixNanos(modified), " ", absl::ToUnixNanos(changed), "\n");
  }

  bool AddFolder(const std::string& path) {
    std::vector<fs::directory_entry> entries;
    std::error_code error;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      if (entries_ + entries.size() > kMaxEntries) return false;
      entries.push_back(*it);
    }
    if (error) return false;
    std::sort(entries.begin(), entries.end());
    for (const fs::directory_entry& entry : entries) {
      absl::StrAppend(&text_, entry.path().filename().string(), "\n");
      if (entry.is_symlink(error) && entry.is_directory(error)) return false;
      if (!Add(entry.path().string())) return false;
    }
    return true;
  }

  const bool links_change_;
  size_t entries_ = 0;
  std::string text_;
  absl::Time newest_ = absl::InfinitePast();
};

}  // namespace

std::optional<FileIdentity> IdentityOf(const std::vector<std::string>& paths, bool links_change) {
  Collector collector(links_change);
  for (const std::string& path : paths) {
    if (!collector.Add(path)) return std::nullopt;
  }
  return std::move(collector).Take();
}

}  // namespace ampd
