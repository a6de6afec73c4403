#include "engine/backend/cpu/kernel_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ampd {
namespace {

constexpr int64_t kGrain = int64_t{64} << 10;

// Pages in memory of executable mappings that are of no file: code that was generated. 0 where the system does not
// tell.
int64_t GeneratedCodeBytes() {
  std::ifstream maps("/proc/self/smaps");
  int64_t kibibytes = 0;
  bool generated = false;
  for (std::string line; std::getline(maps, line);) {
    // "start-end rwxp offset device inode  path" begins a mapping, "Name:  value kB" is of it.
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    if (!absl::EndsWith(words[0], ":")) {
      generated = words.size() == 5 && words[1].size() > 2 && words[1][2] == 'x';
    } else if (int64_t value = 0;
               generated && words[0] == "Rss:" && words.size() > 1 && absl::SimpleAtoi(words[1], &value)) {
      kibibytes += value;
    }
  }
  return kibibytes << 10;
}

int64_t HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

void ForgetKernels() {
  int capacity = 0;
  if (dnnl_get_primitive_cache_capacity(&capacity) != dnnl_success) return;
  dnnl_set_primitive_cache_capacity(0);
  dnnl_set_primitive_cache_capacity(capacity);
}

int64_t NowBytes() { return HeapBytes() + GeneratedCodeBytes(); }

}  // namespace

int64_t BytesKeptBy(absl::FunctionRef<void()> make) {
  ForgetKernels();
  const int64_t before = NowBytes();
  // With the thread goes what malloc() keeps ready for it, which would count as taken.
  std::thread(make).join();
  const int64_t grown = NowBytes() - before;
  return std::max<int64_t>(0, (grown + kGrain - 1) / kGrain * kGrain);
}

}  // namespace ampd
