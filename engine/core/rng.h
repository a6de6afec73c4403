// Counter-based random numbers, the same on every backend: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011).
#ifndef AMPD_ENGINE_CORE_RNG_H_
#define AMPD_ENGINE_CORE_RNG_H_

#include <array>
#include <cstdint>

#include "engine/core/host_device.h"

#include "absl/strings/string_view.h"

namespace ampd {

using PhiloxBlock = std::array<uint32_t, 4>;

// Four random words for a 128-bit counter and a 64-bit key. Pure.
AMPD_HOST_DEVICE inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 24 random bits: exactly (u >> 8) * 2^-24.
AMPD_HOST_DEVICE inline float UniformFloat(uint32_t u) { return static_cast<float>(u >> 8) * 0x1p-24f; }

// Names a stream of random numbers: the low 32 bits of FNV-1a (64 bit) over `name`.
uint32_t RngStream(absl::string_view name);

// The counter of draw `element` for one sample at one attempted step; draws 4i..4i+3 are the four words of one block.
// Word `element % 4` of Philox4x32(RngCounter(...), seed) is the draw.
AMPD_HOST_DEVICE inline PhiloxBlock RngCounter(uint64_t attempted_step, uint32_t sample, uint64_t element,
                                               uint32_t stream) {
  return {static_cast<uint32_t>(element / 4), sample, static_cast<uint32_t>(attempted_step),
          stream ^ static_cast<uint32_t>(attempted_step >> 32)};
}

// A sequence of draws from one stream. Not thread-safe.
class RngSequence {
 public:
  RngSequence(uint64_t seed, absl::string_view name, uint64_t step = 0, uint32_t sample = 0)
      : RngSequence(seed, RngStream(name), step, sample) {}
  AMPD_HOST_DEVICE RngSequence(uint64_t seed, uint32_t stream, uint64_t step, uint32_t sample)
      : seed_(seed), stream_(stream), step_(step), sample_(sample) {}

  AMPD_HOST_DEVICE uint32_t NextWord() {
    const uint64_t word = next_ % 4;
    if (word == 0) block_ = Philox4x32(RngCounter(step_, sample_, next_, stream_), seed_);
    ++next_;
    // Without an index that varies: a device keeps the block in registers then.
    const uint32_t first = word == 0 ? block_[0] : block_[1], last = word == 2 ? block_[2] : block_[3];
    return word < 2 ? first : last;
  }
  AMPD_HOST_DEVICE float NextUniform() { return UniformFloat(NextWord()); }
  // Uniform in 0..bound-1, without bias; bound >= 1.
  AMPD_HOST_DEVICE uint64_t NextBelow(uint64_t bound) {
    // Rejecting the incomplete last interval of the 64-bit range keeps every value equally likely.
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t draw = limit;
    while (draw >= limit) {
      draw = static_cast<uint64_t>(NextWord()) << 32;
      draw |= NextWord();
    }
    return draw % bound;
  }

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t step_;
  uint32_t sample_;
  uint64_t next_ = 0;
  PhiloxBlock block_{};
};

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_RNG_H_
