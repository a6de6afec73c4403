#include "server/jobs/job_id.h"

#include <algorithm>

#include "server/jobs/credentials.h"

namespace ampd {
namespace {

constexpr char kAlphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

// 128 bits as 26 digits of 5 bits; the first holds the top 3.
std::string Encode(const std::array<uint8_t, 16>& value) {
  std::string text(26, '0');
  for (int digit = 0; digit < 26; ++digit) {
    // Bits counted from the top of a 130-bit number whose first two are 0.
    int bits = 0;
    for (int i = 0; i < 5; ++i) {
      const int bit = digit * 5 + i - 2;
      const int set = bit < 0 ? 0 : (value[bit / 8] >> (7 - bit % 8)) & 1;
      bits = bits << 1 | set;
    }
    text[digit] = kAlphabet[bits];
  }
  return text;
}

}  // namespace

void JobIdGenerator::StartAfter(const std::string& id) {
  if (id.size() != 26) return;
  std::array<uint8_t, 16> value = {};
  for (int digit = 0; digit < 26; ++digit) {
    const char* found = std::find(kAlphabet, kAlphabet + 32, id[digit]);
    if (found == kAlphabet + 32) return;
    for (int i = 0; i < 5; ++i) {
      const int bit = digit * 5 + i - 2;
      if (bit >= 0 && ((found - kAlphabet) >> (4 - i) & 1) != 0) value[bit / 8] |= 1 << (7 - bit % 8);
    }
  }
  last_ = value;
}

std::string JobIdGenerator::Next(absl::Time now) {
  std::array<uint8_t, 16> next;
  const std::string random = RandomBytes(10);
  std::copy(random.begin(), random.end(), next.begin() + 6);
  const uint64_t millis = static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixMillis(now)));
  for (int i = 0; i < 6; ++i) next[i] = static_cast<uint8_t>(millis >> (8 * (5 - i)));
  if (!std::lexicographical_compare(last_.begin(), last_.begin() + 6, next.begin(), next.begin() + 6)) {
    next = last_;
    for (int i = 15; i >= 0 && ++next[i] == 0;) --i;
  }
  last_ = next;
  return Encode(next);
}

}  // namespace ampd
