// Pictures as PNG files.
#ifndef AMPD_ENGINE_TRAIN_PNG_H_
#define AMPD_ENGINE_TRAIN_PNG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ampd::train {

struct Image {
  int64_t width = 0;
  int64_t height = 0;
  // 1: grey, 3: red, green, blue.
  int64_t channels = 1;
  // Bytes [height, width, channels].
  std::string pixels;
};

// 8 bits a sample, not interlaced; the same bytes for the same picture. INVALID_ARGUMENT for one without pixels, of
// other channels, a side above 2^20, or with other than height * width * channels bytes; INTERNAL when libpng fails.
absl::StatusOr<std::string> EncodePng(const Image& image);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PNG_H_
