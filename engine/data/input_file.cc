#include "engine/data/input_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ampd::data {

InputFile::~InputFile() { ::close(fd_); }

absl::Status InputFile::ReadAt(int64_t offset, absl::Span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      return absl::DataLossError(absl::StrCat(name_, ": cannot be read at byte ", offset + static_cast<int64_t>(done),
                                              ": ", std::strerror(error)));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(name_, ": ends at byte ", offset + static_cast<int64_t>(done),
                                              " where at least ", offset + static_cast<int64_t>(out.size()),
                                              " bytes are needed"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace ampd::data
