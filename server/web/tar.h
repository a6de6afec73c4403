// Archives that need no compression: ustar (POSIX.1-1988), made as they are sent.
#ifndef AMPD_SERVER_WEB_TAR_H_
#define AMPD_SERVER_WEB_TAR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ampd {

// Of the headers, and what files are filled up to.
inline constexpr int64_t kTarBlock = 512;

struct TarEntry {
  // Begins with the header's block; the file's bytes follow, and TarPadding() of them.
  std::string header;
  int64_t size = 0;
};

// A regular file `folder`/`name`, for everybody to read. Neither is empty or has a '/'. FAILED_PRECONDITION, with the
// name, for what ustar cannot hold: a name of more than 100 bytes, a folder of more than 155, 8 GiB and more.
absl::StatusOr<TarEntry> MakeTarEntry(absl::string_view folder, absl::string_view name, int64_t size, absl::Time time);

// Zeros that fill the file's last block.
std::string TarPadding(int64_t size);

// Behind the last file.
std::string TarEnd();

// Of the whole archive.
int64_t TarBytes(const std::vector<TarEntry>& entries);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_TAR_H_
