// Files and folders that survive a power cut. Every function blocks on the disk and is thread safe.
#ifndef AMPD_SERVER_FILES_FILES_H_
#define AMPD_SERVER_FILES_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ampd {

// The status of `error`, an errno, as "what: its text"; RESOURCE_EXHAUSTED where a disk, a quota or a limit is full,
// UNAVAILABLE for want of descriptors.
absl::Status FileError(absl::string_view what, int error);

// Forces a folder's list of names to disk.
absl::Status SyncFolder(const std::string& path);

// Makes a folder and those above it, and forces to disk the names of those that it made and, made or not, the folder's
// own: whoever made that may not have come so far. Names in folders that cannot be synced, or not by this user, are
// left to the system.
absl::Status MakeFolder(const std::string& path);

// Writes all of `bytes`; `path` is for errors.
absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view path);

// Gives the file that `fd` reads the new name `target` as well; where that cannot be, another file system being there
// or the file having lost its last name, makes a copy, which is on disk when this returns. The position of `fd` stays.
absl::Status LinkOrCopy(int fd, const std::string& target);

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_FILES_H_
