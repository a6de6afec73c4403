#include "server/main/memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>

namespace ampd {
namespace {

constexpr int kArenas = 4;
// Worth the walk through all arenas.
constexpr size_t kMuch = size_t{16} << 20;

}  // namespace

void LimitArenas() { mallopt(M_ARENA_MAX, kArenas); }

void GiveBackMemory() {
  // Free chunks count as such whether their pages were given back or not.
  static size_t given_back = 0;
  const size_t free = mallinfo2().fordblks;
  if (free < given_back + kMuch) {
    given_back = std::min(given_back, free);
    return;
  }
  malloc_trim(0);
  given_back = mallinfo2().fordblks;
}

}  // namespace ampd
