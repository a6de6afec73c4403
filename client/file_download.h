// One downloaded file, put where it shall be as a whole or not at all.
#ifndef AMPD_CLIENT_FILE_DOWNLOAD_H_
#define AMPD_CLIENT_FILE_DOWNLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"

namespace ampd::client {

// Nothing is overwritten. The bytes go to "<path>.partial-XXXXXX", which Commit() renames; without Commit() the
// destructor removes it.
class FileDownload {
 public:
  // ALREADY_EXISTS when there is something at `path`; else the file system's error with the path.
  static absl::StatusOr<std::unique_ptr<FileDownload>> Create(const std::string& path);
  ~FileDownload();
  FileDownload(const FileDownload&) = delete;
  FileDownload& operator=(const FileDownload&) = delete;

  // DATA_LOSS unless the chunk is the next of one file.
  absl::Status Add(const v1::FileChunk& chunk);
  // DATA_LOSS when the file is not complete. ALREADY_EXISTS when something came to be at the path meanwhile.
  absl::Status Commit();

  int64_t bytes() const { return written_; }

 private:
  FileDownload(std::string path, std::string partial, int file)
      : path_(std::move(path)), partial_(std::move(partial)), file_(file) {}

  std::string path_;
  std::string partial_;
  int file_;
  int64_t size_ = -1;  // As announced; -1: nothing came yet.
  int64_t written_ = 0;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_FILE_DOWNLOAD_H_
