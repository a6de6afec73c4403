#include "engine/core/rng.h"

namespace ampd {

uint32_t RngStream(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return static_cast<uint32_t>(hash);
}

uint64_t RngSequence::NextBelow(uint64_t bound) {
  // Rejecting the incomplete last interval of the 64-bit range keeps every value equally likely.
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t draw;
  do {
    draw = (static_cast<uint64_t>(NextWord()) << 32);
    draw |= NextWord();
  } while (draw >= limit);
  return draw % bound;
}

}  // namespace ampd
