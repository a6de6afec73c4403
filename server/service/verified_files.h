// Files that were read and found to be what a checksum says, so that who asks for one in many parts does not have all
// of it read for each of them.
#ifndef AMPD_SERVER_SERVICE_VERIFIED_FILES_H_
#define AMPD_SERVER_SERVICE_VERIFIED_FILES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class VerifiedFiles {
 public:
  // Of an open file: device, inode, size, and when it was last written and changed. A write makes another of it, as
  // does a new link.
  struct Version {
    std::tuple<uint64_t, uint64_t, int64_t> file;
    absl::Time written, changed;
    bool operator<(const Version& other) const {
      return std::tie(file, written, changed) < std::tie(other.file, other.written, other.changed);
    }
    bool operator==(const Version& other) const { return !(*this < other) && !(other < *this); }
  };
  // nullopt where the file system does not tell.
  static std::optional<Version> VersionOf(int fd);

  // The last `most` that were added are known; >= 1.
  explicit VerifiedFiles(size_t most) : most_(most) {}

  bool Knows(const Version& version, absl::string_view checksum) const;
  // `version` was taken at `begin`, before the file was read, and is its version still. Passed over where it was
  // changed so shortly before that a change while it was read might have the same time.
  void Add(const Version& version, absl::Time begin, absl::string_view checksum);

 private:
  const size_t most_;
  mutable Mutex mutex_;
  std::map<Version, std::string> checksums_ ABSL_GUARDED_BY(mutex_);
  // Oldest first.
  std::deque<Version> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_VERIFIED_FILES_H_
