#include "engine/train/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

namespace fs = std::filesystem;

absl::Status ErrnoError(int error, absl::string_view doing, absl::string_view path) {
  const std::string message = absl::StrCat(doing, " ", path, ": ", std::generic_category().message(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return WithFailureClass(absl::ResourceExhaustedError(message), v1::Failure::DISK_FULL);
  }
  return absl::Status(absl::ErrnoToStatusCode(error), message);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<FileWriter> FileWriter::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError(errno, "create", path);
  return FileWriter(path, fd);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_), sha256_(other.sha256_) {}

FileWriter::~FileWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status FileWriter::Append(absl::string_view bytes) {
  sha256_.Append(bytes);
  size_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(errno, "write", path_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status FileWriter::Close() {
  if (fsync(fd_) != 0) return ErrnoError(errno, "fsync", path_);
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoError(errno, "close", path_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  // Not blocking, so that a pipe in a file's place is refused instead of waited for.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return ErrnoError(errno, "open", path);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return ErrnoError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > max_bytes) {
    return absl::OutOfRangeError(absl::StrCat(path, ": ", info.st_size, " bytes, at most ", max_bytes, " expected"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "read", path);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, ": shrank while it was read"));
    filled += static_cast<size_t>(got);
  }
  return bytes;
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> made;
  for (fs::path missing = path; !missing.empty() && !fs::exists(missing, error); missing = missing.parent_path()) {
    made.push_back(missing);
  }
  fs::create_directories(path, error);
  if (error) return ErrnoError(error.value(), "create folder", path);
  for (const fs::path& folder : made) {
    AMPD_RETURN_IF_ERROR(SyncFolder(folder.has_parent_path() ? folder.parent_path().string() : "."));
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return ErrnoError(errno, "open", path);
  if (fsync(folder.get()) != 0) return ErrnoError(errno, "fsync", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoError(error.value(), "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? ErrnoError(error.value(), "remove", path) : absl::OkStatus();
}

absl::Status RenameOrSwap(const std::string& from, const std::string& to) {
  std::error_code error;
  const unsigned flags = fs::exists(fs::symlink_status(to, error)) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0) {
    return ErrnoError(errno, absl::StrCat("rename ", from, " to"), to);
  }
  return absl::OkStatus();
}

}  // namespace ampd::train
