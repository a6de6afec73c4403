#include "server/service/verified_files.h"

#include <sys/stat.h>

#include <algorithm>

namespace ampd {
namespace {

// Far more than a tick of the clock that file systems take the time from.
constexpr absl::Duration kSettled = absl::Milliseconds(100);

}  // namespace

std::optional<VerifiedFiles::Version> VerifiedFiles::VersionOf(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return std::nullopt;
  return Version{{info.st_dev, info.st_ino, info.st_size},
                 absl::TimeFromTimespec(info.st_mtim),
                 absl::TimeFromTimespec(info.st_ctim)};
}

bool VerifiedFiles::Knows(const Version& version, absl::string_view checksum) const {
  const MutexLock lock(&mutex_);
  const auto found = checksums_.find(version);
  return found != checksums_.end() && found->second == checksum;
}

void VerifiedFiles::Add(const Version& version, absl::Time begin, absl::string_view checksum) {
  if (std::max(version.written, version.changed) + kSettled > begin) return;
  const MutexLock lock(&mutex_);
  if (!checksums_.insert_or_assign(version, std::string(checksum)).second) return;
  order_.push_back(version);
  if (order_.size() <= most_) return;
  checksums_.erase(order_.front());
  order_.pop_front();
}

}  // namespace ampd
