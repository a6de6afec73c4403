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

}  // namespace ampd
