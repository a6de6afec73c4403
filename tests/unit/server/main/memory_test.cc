#include "server/main/memory.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ampd {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kChunk = 4096;
// A sanitizer's allocator gives back when it likes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOtherAllocator = true;
#else
constexpr bool kOtherAllocator = false;
#endif
// More calls than lie between any two looks.
constexpr int kLong = 400;

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// As requests and answers do: by the million, and too small for mappings of their own.
class Chunks {
 public:
  explicit Chunks(size_t bytes) {
    for (size_t i = 0; i < bytes / kChunk; ++i) {
      chunks_.emplace_back(new char[kChunk]);
      std::memset(chunks_.back().get(), 1, kChunk);
    }
    // At the heap's end what is free goes back by itself.
    last_.reset(new char[kChunk]);
  }
  void Free() { chunks_.clear(); }

 private:
  std::vector<std::unique_ptr<char[]>> chunks_;
  std::unique_ptr<char[]> last_;
};

void CallOften() {
  for (int i = 0; i < kLong; ++i) GiveBackMemory();
}

TEST(GiveBackMemoryTest, GivesBackWhatASurgeLeft) {
  if (kOtherAllocator) GTEST_SKIP() << "a sanitizer allocates";
  CallOften();
  const size_t before = ResidentBytes();
  Chunks chunks(96 * kMiB);
  GiveBackMemory();
  chunks.Free();
  CallOften();
  EXPECT_LT(ResidentBytes(), before + 8 * kMiB);
}

// As a flood that ends amid giving back: what is freed then lies in arenas that were walked already, and looks like
// what cannot be given back.
TEST(GiveBackMemoryTest, GivesBackWhatWasFreedMeanwhile) {
  if (kOtherAllocator) GTEST_SKIP() << "a sanitizer allocates";
  CallOften();
  const size_t before = ResidentBytes();
  // The main thread's arena is the first one.
  for (int round = 0; round < 8; ++round) {
    Chunks first(32 * kMiB);
    std::atomic<bool> walk{false};
    std::thread other([&walk] {
      Chunks last(160 * kMiB);
      last.Free();
      walk = true;
      GiveBackMemory();
    });
    while (!walk) std::this_thread::yield();
    first.Free();
    other.join();
    CallOften();
    ASSERT_LT(ResidentBytes(), before + 24 * kMiB) << "round " << round;
  }
}

// What was given back counts as free all the same: the same chunks, taken and freed between two looks, change nothing
// in the allocator's sums.
TEST(GiveBackMemoryTest, GivesBackWhatWasTakenAgainBetweenTwoLooks) {
  if (kOtherAllocator) GTEST_SKIP() << "a sanitizer allocates";
  Chunks first(96 * kMiB);
  GiveBackMemory();
  first.Free();
  CallOften();
  const size_t before = ResidentBytes();
  // Less than a surge.
  Chunks second(28 * kMiB);
  ASSERT_GT(ResidentBytes(), before + 24 * kMiB);
  second.Free();
  CallOften();
  EXPECT_LT(ResidentBytes(), before + 12 * kMiB);
}

}  // namespace
}  // namespace ampd
