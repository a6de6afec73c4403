// A decoded picture.
#ifndef AMPD_ENGINE_DATA_IMAGE_H_
#define AMPD_ENGINE_DATA_IMAGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ampd::data {

// Sides and pixels that a file may have; what claims more is refused before it is decoded.
inline constexpr int64_t kMaxImageSide = 65535;
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 26;

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  // 1: grayscale, 3: red, green, blue.
  int64_t channels = 0;
  // Row by row from the top, channels last: height * width * channels bytes.
  std::vector<uint8_t> pixels;
};

// DATA_LOSS unless both sides are 1 to kMaxImageSide and there are at most kMaxImagePixels.
inline absl::Status CheckImageSize(int64_t height, int64_t width) {
  if (height >= 1 && width >= 1 && height <= kMaxImageSide && width <= kMaxImageSide &&
      height * width <= kMaxImagePixels) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("an image of ", width, "x", height, " pixels; sides are 1 to ", kMaxImageSide,
                                          " and pixels at most ", kMaxImagePixels));
}

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_IMAGE_H_
