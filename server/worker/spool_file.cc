#include "server/worker/spool_file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr int64_t kHeaderBytes = sizeof(uint32_t);
// Punching holes for less costs more calls than it saves space.
constexpr int64_t kReleaseStep = 4 << 20;

bool WriteAll(int fd, const std::string& bytes, int64_t offset) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, char* out, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, out + done, size - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

SpoolFile::~SpoolFile() {
  if (fd_ >= 0) close(fd_);
  rmdir(directory_.c_str());
}

absl::Status SpoolFile::Open() {
  mkdir(directory_.c_str(), 0700);
  std::string name = absl::StrCat(directory_, "/events-XXXXXX");
  fd_ = mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make a spool file in ", directory_, ": ", strerror(errno)));
  }
  unlink(name.c_str());
  return absl::OkStatus();
}

absl::Status SpoolFile::Push(const std::string& record) {
  if (fd_ < 0) AMPD_RETURN_IF_ERROR(Open());
  const int64_t bytes = kHeaderBytes + static_cast<int64_t>(record.size());
  if (size_bytes() + bytes > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the spool in ", directory_, " holds its ", max_bytes_, " bytes"));
  }
  const uint32_t length = static_cast<uint32_t>(record.size());
  std::string framed(reinterpret_cast<const char*>(&length), kHeaderBytes);
  framed += record;
  if (!WriteAll(fd_, framed, write_offset_)) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write the spool in ", directory_, ": ", strerror(errno)));
  }
  write_offset_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::string> SpoolFile::Pop() {
  if (empty()) return absl::FailedPreconditionError("the spool is empty");
  uint32_t length = 0;
  std::string record;
  bool read = ReadAll(fd_, reinterpret_cast<char*>(&length), kHeaderBytes, read_offset_);
  read = read && length <= size_bytes() - kHeaderBytes;
  if (read) {
    record.resize(length);
    read = ReadAll(fd_, record.data(), length, read_offset_ + kHeaderBytes);
  }
  if (!read) return absl::DataLossError(absl::StrCat("the spool in ", directory_, " does not read back"));
  read_offset_ += kHeaderBytes + static_cast<int64_t>(length);
  Release();
  return record;
}

void SpoolFile::Release() {
  if (empty()) {
    if (ftruncate(fd_, 0) == 0) read_offset_ = write_offset_ = released_offset_ = 0;
  } else if (read_offset_ - released_offset_ >= kReleaseStep) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, released_offset_, read_offset_ - released_offset_);
    released_offset_ = read_offset_;
  }
}

}  // namespace ampd
