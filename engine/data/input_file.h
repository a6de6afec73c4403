// A dataset's file, open for reading.
#ifndef AMPD_ENGINE_DATA_INPUT_FILE_H_
#define AMPD_ENGINE_DATA_INPUT_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace ampd::data {

// Owns the descriptor of a regular file. Immutable after construction; ReadAt may be called from any thread.
class InputFile {
 public:
  // Takes over `fd`. `name` is what errors call the file; `size` is its length in bytes.
  InputFile(int fd, std::string name, int64_t size) : fd_(fd), name_(std::move(name)), size_(size) {}
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }

  // Fills `out` from byte `offset` on. DATA_LOSS when the file ends before or cannot be read.
  absl::Status ReadAt(int64_t offset, absl::Span<uint8_t> out) const;

 private:
  int fd_;
  std::string name_;
  int64_t size_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_INPUT_FILE_H_
