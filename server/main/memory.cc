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
// A flood brings some of it in a period; what of it was freed meanwhile has to go before more is taken.
constexpr size_t kSurge = size_t{32} << 20;
// Calls between two looks for what was freed without a surge, and of those that follow one.
constexpr int kCalls = 100;
constexpr int kHurriedCalls = 2;
// Giving back so little is in vain, as what is idle may be stacks, or bits of pages; the next look then comes in twice
// the time, up to so many doublings.
constexpr size_t kLittle = size_t{4} << 20;
constexpr int kMostFruitless = 6;

// Memory of the process that is no file's. 0 where /proc does not say.
size_t AnonymousBytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0, shared = 0;
  file >> all >> resident >> shared;
  return (resident - std::min(resident, shared)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// What nobody uses, with stacks and whatever else is not the allocator's. From the system's count of pages: the
// allocator's own of free chunks holds those whose pages it has given back too, until it gives back their addresses.
size_t IdleBytes(size_t anonymous) {
  const struct mallinfo2 info = mallinfo2();
  return anonymous - std::min(anonymous, info.uordblks + info.hblkhd);
}

}  // namespace

void LimitArenas() { mallopt(M_ARENA_MAX, kArenas); }

void GiveBackMemory() {
  // After memory was last given back.
  static size_t anonymous_before = AnonymousBytes();
  static int calls = 0;
  static int hurried = 0;
  static int fruitless = 0;
  const size_t anonymous = AnonymousBytes();
  const bool surge = anonymous >= anonymous_before + kSurge;
  anonymous_before = std::min(anonymous_before, anonymous);
  if (surge) hurried = kCalls;
  hurried = std::max(hurried - 1, 0);
  if (!surge) {
    if (++calls < (hurried > 0 ? kHurriedCalls : kCalls << fruitless)) return;
    calls = 0;
    if (IdleBytes(anonymous) < kMuch) return;
  }
  malloc_trim(0);
  anonymous_before = AnonymousBytes();
  // What is idle now is no measure of what cannot be given back: others free in an arena that was walked already.
  const bool little = anonymous_before + kLittle > anonymous;
  fruitless = little && !surge ? std::min(fruitless + 1, kMostFruitless) : 0;
}

}  // namespace ampd
