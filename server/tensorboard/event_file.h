// TensorBoard's event files: records of a length, its checksum, the bytes of a tensorboard::Event, and their checksum
// (TFRecord, https://www.tensorflow.org/tutorials/load_data/tfrecord; CRC-32C after Castagnoli, masked).
#ifndef AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_
#define AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // The highest sequence that was appended; 0 for a new file.
  uint64_t sequence() const { return sequence_; }

  // What the job's events up to `sequence` became; may be empty, and is remembered then by the next that is not.
  absl::Status Append(std::vector<tensorboard::Event> events, uint64_t sequence);

 private:
  EventFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Recover();
  absl::Status Write(const std::string& bytes);

  const std::string path_;
  const int fd_;
  uint64_t sequence_ = 0;
  int64_t size_ = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_TENSORBOARD_EVENT_FILE_H_
