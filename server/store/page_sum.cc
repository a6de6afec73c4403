#include "server/store/page_sum.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"

namespace ampd {
namespace {

static_assert(std::endian::native == std::endian::little, "sums are of little-endian words");

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
constexpr size_t kLanes = 4;

// Of the header: change counter, schema cookie, and the version that the change counter is valid for and SQLite's own.
constexpr std::pair<size_t, size_t> kVolatile[] = {{24, 28}, {40, 44}, {92, 100}};
// And the version of the file's format for writing and reading, which is the kind of its journal: 1 or 2.
constexpr size_t kFormats[] = {18, 19};
constexpr unsigned char kLastFormat = 2;
// Covers the header in whole words.
constexpr size_t kHeaderWords = 13;

uint64_t Load(const unsigned char* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof(word));
  return word;
}

// One to one, so that what differs stays different.
uint64_t Mix(uint64_t value) { return (value ^ (value >> 32)) * kOdd; }

}  // namespace

uint64_t PageSum(const unsigned char* page, size_t size, uint32_t number) {
  // Several, so that a product need not wait for the one before.
  uint64_t lanes[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Mix(kOdd * (lane + 1) ^ number);
  const size_t words = (size - kPageSumBytes) / sizeof(uint64_t);
  size_t word = 0;
  if (number == 1) {
    unsigned char header[kHeaderWords * sizeof(uint64_t)];
    memcpy(header, page, sizeof(header));
    for (const auto& [from, to] : kVolatile) memset(header + from, 0, to - from);
    for (const size_t at : kFormats) header[at] = header[at] <= kLastFormat ? 0 : header[at];
    for (; word < kHeaderWords; ++word) {
      lanes[word % kLanes] = Mix(lanes[word % kLanes] ^ Load(header + word * sizeof(uint64_t)));
    }
  }
  for (; word % kLanes != 0; ++word) lanes[word % kLanes] = Mix(lanes[word % kLanes] ^ Load(page + word * 8));
  for (; word + kLanes <= words; word += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Mix(lanes[lane] ^ Load(page + (word + lane) * 8));
  }
  for (; word < words; ++word) lanes[word % kLanes] = Mix(lanes[word % kLanes] ^ Load(page + word * 8));
  uint64_t sum = size;
  for (const uint64_t lane : lanes) sum = Mix(sum ^ lane);
  sum ^= sum >> 32;
  return sum == 0 ? kOdd : sum;
}

uint64_t StoredSum(const unsigned char* page, size_t size) { return Load(page + size - kPageSumBytes); }

void StoreSum(uint64_t sum, unsigned char* page, size_t size) {
  memcpy(page + size - kPageSumBytes, &sum, sizeof(sum));
}

bool ReservesSums(const unsigned char* header) { return PageSizeOf(header) > 0 && header[20] == kPageSumBytes; }

size_t PageSizeOf(const unsigned char* header) {
  // With the zero at its end.
  if (memcmp(header, "SQLite format 3", 16) != 0) return 0;
  const size_t size = header[16] << 8 | header[17] << 16;
  return size >= 512 && size <= 65536 && std::has_single_bit(size) ? size : 0;
}

}  // namespace ampd
