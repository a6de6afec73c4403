#include "server/main/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>

namespace ampd {
namespace {

constexpr int kArenas = 4;
// Worth the walk through all arenas.
constexpr size_t kMuch = size_t{16} << 20;
// Grown by as much since memory was last given back, some of it may be free that was free then too and was taken in
// between, which the allocator's sums do not tell.
constexpr size_t kGrowth = size_t{8} << 20;
// A flood brings some of it in a period; what of it was freed meanwhile has to go before more is taken.
constexpr size_t kSurge = size_t{32} << 20;
// Calls between two looks for what was freed without a surge, and of those that follow one.
constexpr int kCalls = 100;
constexpr int kHurriedCalls = 2;

// 0 where /proc does not say.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool MuchWasFreed(size_t* given_back) {
  // Free chunks count as such whether their pages were given back or not.
  const size_t free = mallinfo2().fordblks;
  const bool much = free >= *given_back + kMuch;
  if (!much) *given_back = std::min(*given_back, free);
  return much;
}

}  // namespace

void LimitArenas() { mallopt(M_ARENA_MAX, kArenas); }

void GiveBackMemory() {
  static size_t resident_before = ResidentBytes();
  static size_t given_back = 0;
  static int calls = 0;
  static int hurried = 0;
  const size_t resident = ResidentBytes();
  const bool surge = resident >= resident_before + kSurge;
  resident_before = std::min(resident_before, resident);
  if (surge) hurried = kCalls;
  hurried = std::max(hurried - 1, 0);
  const int between = hurried > 0 ? kHurriedCalls : kCalls;
  if (!surge) {
    if (++calls % between != 0) return;
    const bool much = MuchWasFreed(&given_back);
    if (!much && resident < resident_before + kGrowth) return;
  }
  malloc_trim(0);
  given_back = mallinfo2().fordblks;
  resident_before = ResidentBytes();
}

}  // namespace ampd
