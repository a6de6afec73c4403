#include "engine/backend/cuda/autotune_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr char kHeader[] = "ampd autotune 1";
// A process that was stopped while it held the lock must not stop the others: half a second at most.
constexpr int kLockTries = 100;
constexpr timespec kLockPause = {0, 5'000'000};

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("[autotune] ", path, ": ", what, ": ", std::strerror(errno)));
}

// FNV-1a (Fowler, Noll, Vo): against torn and edited lines, not against an adversary, whose entries are checked by who
// uses them.
std::string Checksum(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

bool Lock(int fd) {
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    nanosleep(&kLockPause, nullptr);
  }
  return false;
}

bool ReadAll(int fd, int64_t bytes, std::string* text) {
  text->resize(static_cast<size_t>(bytes));
  size_t got = 0;
  while (got < text->size()) {
    const ssize_t n = read(fd, text->data() + got, text->size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  text->resize(got);
  return got > 0;
}

bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

AutotuneCache::AutotuneCache(std::string directory) : directory_(std::move(directory)) {
  if (!directory_.empty()) ReadFile();
}

absl::optional<std::string> AutotuneCache::Find(const std::string& key) const {
  const auto it = index_.find(key);
  if (it == index_.end()) return absl::nullopt;
  return it->second->second;
}

void AutotuneCache::Put(const std::string& key, const std::string& value) {
  if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) return;
  Insert(key, value);
  if (!directory_.empty() && status_.ok()) status_ = WriteFile();
}

void AutotuneCache::Insert(std::string key, std::string value) {
  const auto old = index_.find(key);
  if (old != index_.end()) entries_.erase(old->second);
  entries_.emplace_back(key, std::move(value));
  index_[std::move(key)] = std::prev(entries_.end());
  if (entries_.size() <= kMaxEntries) return;
  index_.erase(entries_.front().first);
  entries_.pop_front();
}

// A header, then lines of checksum, key and value, tabs between them; what is not printable is escaped as in C.
void AutotuneCache::Parse(absl::string_view text) {
  bool is_first = true;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (std::exchange(is_first, false)) {
      if (line != kHeader) return;
      continue;
    }
    const size_t tab = line.find('\t');
    if (tab == absl::string_view::npos || Checksum(line.substr(tab + 1)) != line.substr(0, tab)) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(tab + 1), '\t');
    std::string key, value;
    if (fields.size() != 2 || !absl::CUnescape(fields[0], &key) || !absl::CUnescape(fields[1], &value)) continue;
    if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) continue;
    Insert(std::move(key), std::move(value));
  }
}

std::string AutotuneCache::Text() const {
  std::string text = absl::StrCat(kHeader, "\n");
  for (const auto& [key, value] : entries_) {
    const std::string line = absl::StrCat(absl::CEscape(key), "\t", absl::CEscape(value));
    absl::StrAppend(&text, Checksum(line), "\t", line, "\n");
  }
  return text;
}

void AutotuneCache::ReadFile() {
  // A pipe or a device in the file's place must not hold the process up.
  const File file(open(absl::StrCat(directory_, "/", kFileName).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kMaxFileBytes) return;
  std::string text;
  if (ReadAll(file.fd(), info.st_size, &text)) Parse(text);
}

absl::Status AutotuneCache::WriteFile() {
  const std::string path = absl::StrCat(directory_, "/", kFileName), lock_path = absl::StrCat(path, ".lock");
  const File lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.fd() < 0 || !Lock(lock.fd())) return Failed("cannot be locked", lock_path);
  // Of all that is here only the choice that was just put is newer than what others wrote since.
  auto [key, value] = entries_.back();
  ReadFile();
  Insert(std::move(key), std::move(value));
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  {
    const File file(mkstemp(temporary.data()));
    if (file.fd() < 0) return Failed("cannot be created", temporary);
    if (!WriteAll(file.fd(), Text())) {
      const absl::Status status = Failed("cannot be written", temporary);
      unlink(temporary.c_str());
      return status;
    }
  }
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = Failed("cannot be replaced", path);
  unlink(temporary.c_str());
  return status;
}

}  // namespace ampd::cuda
