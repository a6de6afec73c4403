// Files that survive a power cut, and folders of them. Errors name path and cause; a full disk (ENOSPC, EDQUOT, or a
// file-size limit) is RESOURCE_EXHAUSTED marked DISK_FULL.
#ifndef AMPD_ENGINE_TRAIN_FILES_H_
#define AMPD_ENGINE_TRAIN_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/train/sha256.h"

namespace ampd::train {

// Writes one new file front to back. Movable; not thread-safe.
class FileWriter {
 public:
  // ALREADY_EXISTS when `path` is there.
  static absl::StatusOr<FileWriter> Create(const std::string& path);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  absl::Status Append(absl::string_view bytes);
  // Forces the file to disk and closes it. Without a Close() that succeeds the file's contents are undefined.
  absl::Status Close();

  int64_t size() const { return size_; }
  // Of all that was appended; once, at the end.
  std::string Sha256() { return sha256_.HexDigest(); }

 private:
  FileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
  int64_t size_ = 0;
  train::Sha256 sha256_;
};

// The whole of a regular file; NOT_FOUND when there is none, OUT_OF_RANGE when it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Makes a folder, and its parents, and forces their names to disk.
absl::Status MakeFolder(const std::string& path);
// Forces a folder's list of names to disk.
absl::Status SyncFolder(const std::string& path);
// Names within a folder, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);
// Removes a folder and all within it; OK when there is none.
absl::Status RemoveTree(const std::string& path);
// Gives `from` the name `to`; where `to` exists the two swap names. Atomic.
absl::Status RenameOrSwap(const std::string& from, const std::string& to);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_FILES_H_
