// The files of a downloaded checkpoint, put into a folder as a whole or not at all.
#ifndef AMPD_CLIENT_CHECKPOINT_WRITER_H_
#define AMPD_CLIENT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "client/checkpoint_manifest.h"
#include "client/sha256.h"

namespace ampd::client {

// Nothing is overwritten: the folder must not exist yet, or be empty. Files are written to "<folder>.partial-XXXXXX"
// beside it, which Commit() renames; without Commit() the destructor removes it.
class CheckpointWriter {
 public:
  // ALREADY_EXISTS when `folder` holds something; else the file system's error with the path.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const std::string& folder);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // DATA_LOSS unless the chunk continues its file, or starts the next one when the file before is complete; and unless
  // all are of one checkpoint, and for a file name that could leave the folder.
  absl::Status Add(const v1::FileChunk& chunk);

  // DATA_LOSS when the last file is not complete, and, naming it, for a file that is not the one that MANIFEST lists:
  // its bytes are others, it is missing, or it is not listed.
  absl::Status Commit();

  // Of the files so far; empty before the first.
  const std::string& checkpoint() const { return checkpoint_; }
  // Whether the file was begun.
  bool Has(const std::string& file) const { return name_ == file || contents_.count(file) > 0; }
  // The file that was begun last, how much of it is there, and how much is not.
  const std::string& file() const { return name_; }
  int64_t written() const { return written_; }
  int64_t missing_bytes() const { return file_size_ - written_; }
  // Whether some of them come from the server's copy in its mirror.
  bool from_mirror() const { return from_mirror_; }
  int64_t files() const { return static_cast<int64_t>(contents_.size()) + (file_ >= 0 ? 1 : 0); }
  int64_t bytes() const { return bytes_; }

 private:
  CheckpointWriter(std::string folder, std::string partial);
  absl::Status Start(const v1::FileChunk& chunk);
  absl::Status Write(const std::string& data);
  absl::Status FinishFile();
  // Compares what came with MANIFEST.
  absl::Status Check() const;

  std::string folder_;
  std::string partial_;
  std::string checkpoint_;
  std::map<std::string, FileContent> contents_;  // Of the files that are complete.
  std::string manifest_;                         // What came of it.
  std::string name_;                             // Of the file being written.
  Sha256 digest_;                                // Of what was written of it.
  int file_ = -1;
  int64_t file_size_ = 0;  // As announced.
  int64_t written_ = 0;    // Of the file being written.
  int64_t bytes_ = 0;
  bool from_mirror_ = false;
  bool committed_ = false;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CHECKPOINT_WRITER_H_
