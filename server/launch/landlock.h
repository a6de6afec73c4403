// Landlock, the kernel's way for a process to give up access to files for good, itself (Linux 5.13 and later).
#ifndef AMPD_SERVER_LAUNCH_LANDLOCK_H_
#define AMPD_SERVER_LAUNCH_LANDLOCK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/unique_fd.h"

namespace ampd {

// What the kernel has of it: 1 and up; 0: nothing, or a filter of system calls keeps it from this process.
int LandlockVersion();

// From this version on it refuses that files are emptied which may not be written (Linux 6.2).
inline constexpr int kLandlockTruncates = 3;

// What can be done with files. Of what a kernel does not know of these, nothing is refused.
enum FileRights : uint64_t {
  kReadFiles = 1,
  // Runs programs.
  kExecuteFiles = 2,
  // Opens files to write, makes new ones, empties them.
  kWriteFiles = 4,
  // Removes, renames, and makes folders, links, pipes, sockets and devices.
  kChangeFolders = 8,
};

// A set of rules, and what holds besides where a kernel has it: no TCP, no signals to processes outside, and no
// connections to their abstract sockets. Tracing processes outside is refused in any case.
class Landlock {
 public:
  // Refuses `rights`, a sum of FileRights, but for what Allow() names, by what `version` has of it; at most
  // LandlockVersion(). UNIMPLEMENTED where that is none.
  static absl::StatusOr<Landlock> Refuse(uint64_t rights, int version = LandlockVersion());

  // Of a file, or a folder and all that is in it; what cannot be opened is passed over.
  void Allow(const std::string& path, uint64_t rights);

  // From here on, for this thread and all that it starts. Needs no_new_privs.
  absl::Status Enforce();

 private:
  Landlock(UniqueFd rules, uint64_t refused) : rules_(std::move(rules)), refused_(refused) {}

  UniqueFd rules_;
  // As the kernel has them.
  uint64_t refused_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_LANDLOCK_H_
