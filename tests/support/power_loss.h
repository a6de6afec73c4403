// What a disk may hold after the power went: records what this program does to the files beneath a folder, and makes
// the folder as it may be found if the power went after any of it.
//
// A program that links this has its calls of open, write, pwrite, ftruncate, fsync, fdatasync, rename, mkdir, unlink,
// rmdir and their relatives recorded, those of the C++ library and of SQLite included; mapped memory is not.
//
// Of a file survives what was synced, and of what was written since any part: each block of 512 bytes or not. Of a
// folder survive the names at its last sync, and of what was done to them since a first part, in order. Nothing else
// makes anything durable: not closing, not time, not the sync of another file or folder.
#ifndef AMPD_TESTS_SUPPORT_POWER_LOSS_H_
#define AMPD_TESTS_SUPPORT_POWER_LOSS_H_

#include <cstddef>
#include <random>
#include <string>

namespace ampd {

// One recording at a time. Thread safe.
class PowerLoss {
 public:
  // Records from here on. `folder` is there, empty and durable; an absolute path without links.
  explicit PowerLoss(const std::string& folder);
  // Ends the recording.
  ~PowerLoss();
  PowerLoss(const PowerLoss&) = delete;
  PowerLoss& operator=(const PowerLoss&) = delete;

  // Calls recorded so far. What happened before this call is among them.
  size_t position() const;

  // Makes `target`, which is not there yet, as `folder` may be if the power went after the first `position` calls.
  // `syncs_nothing`: syncs count for nothing, to see a test fail.
  void Restore(size_t position, std::mt19937& random, const std::string& target, bool syncs_nothing = false) const;
};

}  // namespace ampd

#endif  // AMPD_TESTS_SUPPORT_POWER_LOSS_H_
