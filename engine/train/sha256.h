// SHA-256 (FIPS 180-4), for checksums of checkpoint files and of specs.
#ifndef AMPD_ENGINE_TRAIN_SHA256_H_
#define AMPD_ENGINE_TRAIN_SHA256_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ampd::train {

// Not thread-safe.
class Sha256 {
 public:
  void Append(absl::string_view bytes);
  // The digest of everything appended, as 64 lower-case hex digits. Ends the use of the object.
  std::string HexDigest();

 private:
  void Block(const unsigned char* block);

  std::array<uint32_t, 8> hash_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> partial_{};
  uint64_t bytes_ = 0;
};

std::string Sha256Hex(absl::string_view bytes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SHA256_H_
