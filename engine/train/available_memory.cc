#include "engine/train/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ampd::train {
namespace {

// Left to the rest of the machine.
constexpr double kUsableShare = 0.9;

// The number that follows `key` in a file of the kernel's, or its first; `fallback` where there is none ("max").
int64_t NumberIn(const std::string& path, const std::string& key, int64_t fallback) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) continue;
  int64_t value = 0;
  return file >> word && absl::SimpleAtoi(word, &value) ? value : fallback;
}

int64_t GroupBytes() {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max", "", kAll);
  if (limit == kAll) return kAll;
  const int64_t used = NumberIn("/sys/fs/cgroup/memory.current", "", 0);
  return std::max<int64_t>(0, limit - used + NumberIn("/sys/fs/cgroup/memory.stat", "inactive_file", 0));
}

}  // namespace

int64_t AvailableBytes(const runtime::Memory& memory) {
  if (!memory.on_host()) return memory.free_bytes();
  const int64_t kilobytes = NumberIn("/proc/meminfo", "MemAvailable:", memory.total_bytes() / 1024);
  return std::min({kilobytes * 1024, GroupBytes(), memory.total_bytes()});
}

absl::Status CheckAvailable(const runtime::Memory& memory, int64_t bytes) {
  const int64_t available = AvailableBytes(memory);
  if (static_cast<double>(bytes) <= kUsableShare * static_cast<double>(available)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("it takes ", bytes, " bytes of memory, of ", available, " that are available"));
}

}  // namespace ampd::train
