// Whether files are still what they were, without reading them.
#ifndef AMPD_SERVER_SERVICE_FILE_IDENTITY_H_
#define AMPD_SERVER_SERVICE_FILE_IDENTITY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace ampd {

// Of several files and folders with everything in them. Two that are equal mean that nothing was changed between, as
// long as `newest` was in the past when the first was taken: changes within one tick of the file system's clock look
// the same.
struct FileIdentity {
  // Device, inode, kind, size, times of modification and change of each; that there is none.
  std::string text;
  // The newest change; absl::InfinitePast() where there is nothing.
  absl::Time newest = absl::InfinitePast();
};

// Of `paths`, in this order; symbolic links are followed. `links_change`: whether a file's time of change counts; it
// does not for files of which links are made. nullopt when it cannot be told: more than 20,000 entries in all, a folder
// that cannot be read, or a link to a folder within one.
std::optional<FileIdentity> IdentityOf(const std::vector<std::string>& paths, bool links_change = true);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_FILE_IDENTITY_H_
