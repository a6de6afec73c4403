// A bounded first-in, first-out file of byte records, for what does not fit in memory while the daemon is away.
#ifndef AMPD_SERVER_WORKER_SPOOL_FILE_H_
#define AMPD_SERVER_WORKER_SPOOL_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ampd {

// The file is made in `directory` (itself made when missing) at the first record and has no name, so it goes with the
// process. Space of records read is given back where the file system can. Not thread safe.
class SpoolFile {
 public:
  SpoolFile(std::string directory, int64_t max_bytes) : directory_(std::move(directory)), max_bytes_(max_bytes) {}
  ~SpoolFile();
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  bool empty() const { return read_offset_ == write_offset_; }
  // Bytes of the records held, their headers included.
  int64_t size_bytes() const { return write_offset_ - read_offset_; }

  // RESOURCE_EXHAUSTED when the bound or the disk has no room: the record was not taken and nothing else is lost.
  absl::Status Push(const std::string& record);

  // The oldest record, taken out. FAILED_PRECONDITION when empty, DATA_LOSS when the file does not read back.
  absl::StatusOr<std::string> Pop();

 private:
  absl::Status Open();
  void Release();

  const std::string directory_;
  const int64_t max_bytes_;
  int fd_ = -1;
  int64_t read_offset_ = 0;
  int64_t write_offset_ = 0;
  int64_t released_offset_ = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_SPOOL_FILE_H_
