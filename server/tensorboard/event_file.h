// TensorBoard's event files: records of a length, its checksum, the bytes of a tensorboard::Event, and their checksum
// (TFRecord, https://www.tensorflow.org/tutorials/load_data/tfrecord; CRC-32C after Castagnoli, masked).
#ifndef AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_
#define AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/files/unique_fd.h"
#include "tensorboard/event.pb.h"

namespace ampd {

// CRC-32C of `bytes`.
uint32_t Crc32c(absl::string_view bytes);

// Appends to one file. Not thread-safe. A crash may leave part of the last Append behind, which the next Open cuts off.
class EventFile {
 public:
  // Makes the file and its folder, or goes on behind the last whole Append of one that is there. Errors name path and
  // cause; RESOURCE_EXHAUSTED for a full disk.
  static absl::StatusOr<std::unique_ptr<EventFile>> Open(const std::string& path);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // The highest sequence that was appended; 0 for a new file.
  uint64_t sequence() const { return sequence_; }

  // What the job's events up to `sequence` became; may be empty, and is remembered then by the next that is not.
  absl::Status Append(std::vector<tensorboard::Event> events, uint64_t sequence);

  // Closes the file, and all that is known of it stays known: the next Append with something to write opens it again.
  // That fails with DATA_LOSS where somebody changed its size meanwhile, NOT_FOUND where it is gone.
  void Close() { fd_.Reset(); }
  bool is_open() const { return fd_.valid(); }

 private:
  EventFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status Recover();
  absl::Status Reopen();
  absl::Status Write(const std::string& bytes);

  const std::string path_;
  UniqueFd fd_;
  uint64_t sequence_ = 0;
  int64_t size_ = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_
