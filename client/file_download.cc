#include "client/file_download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/umask.h"

namespace ampd::client {
namespace {

absl::Status FileError(const std::string& path) {
  if (errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(path, ": exists already"));
  const absl::StatusCode code = errno == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnknown;
  return absl::Status(code, absl::StrCat(path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileDownload>> FileDownload::Create(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) return absl::AlreadyExistsError(absl::StrCat(path, ": exists already"));
  std::string partial = absl::StrCat(path, ".partial-XXXXXX");
  const int file = mkostemp(partial.data(), O_CLOEXEC);
  if (file < 0) return FileError(path);
  fchmod(file, WithoutUmask(0666));
  return std::unique_ptr<FileDownload>(new FileDownload(path, std::move(partial), file));
}

FileDownload::~FileDownload() {
  if (file_ >= 0) close(file_);
  if (!partial_.empty()) unlink(partial_.c_str());
}

absl::Status FileDownload::Add(const v1::FileChunk& chunk) {
  const std::string& data = chunk.data();
  if (size_ < 0) size_ = chunk.file_size();
  if (chunk.file_size() != size_ || chunk.offset() != written_ ||
      static_cast<int64_t>(data.size()) > size_ - written_) {
    return absl::DataLossError(absl::StrCat(path_, ": got byte ", chunk.offset(), " of ", chunk.file_size(),
                                            " where byte ", written_, " of ", size_, " is next"));
  }
  for (size_t done = 0; done < data.size();) {
    const ssize_t count = write(file_, data.data() + done, data.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(partial_);
    done += static_cast<size_t>(count);
  }
  written_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::Status FileDownload::Commit() {
  if (written_ != size_) {
    return absl::DataLossError(absl::StrCat(path_, ": ended after ", written_, " of ", size_, " bytes"));
  }
  const int file = std::exchange(file_, -1);
  const bool synced = fsync(file) == 0;
  if (close(file) != 0 || !synced) return FileError(partial_);
  // Unlike a rename a link never takes another file's place.
  if (link(partial_.c_str(), path_.c_str()) != 0) return FileError(path_);
  return absl::OkStatus();
}

}  // namespace ampd::client
