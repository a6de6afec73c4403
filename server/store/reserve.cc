#include "server/store/reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

// The index of the log takes 32 KiB for each 16 MiB of the log, and what is written first a few pages.
constexpr off_t kBytes = 256 << 10;

std::string PathIn(const std::string& state_dir) { return absl::StrCat(state_dir, "/reserve"); }

}  // namespace

bool KeepReserve(const std::string& state_dir) {
  const std::string path = PathIn(state_dir);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return false;
  if (info.st_size == kBytes) return true;
  // Takes the blocks, where a file of that length would take none.
  if (posix_fallocate(file.get(), 0, kBytes) == 0) return true;
  unlink(path.c_str());
  return false;
}

bool UseReserve(const std::string& state_dir) { return unlink(PathIn(state_dir).c_str()) == 0; }

}  // namespace ampd
