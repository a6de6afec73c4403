// Pictures as fuzz targets decode them.
#ifndef AMPD_TESTS_FUZZ_IMAGE_H_
#define AMPD_TESTS_FUZZ_IMAGE_H_

#include <string>

#include "engine/data/image_file.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {

// Decodes `bytes` and checks what came out.
inline void Decode(const std::string& bytes) {
  const absl::Span<const uint8_t> file(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  absl::StatusOr<data::Image> image = data::DecodeImage(file);
  CheckError(image.status());
  if (!image.ok()) return;
  Check(data::CheckImageSize(image->height, image->width).ok(), "an image of a size that is refused");
  Check(image->channels == 1 || image->channels == 3, "channels that no image has");
  const auto places = static_cast<size_t>(image->height * image->width);
  Check(image->pixels.size() == places * static_cast<size_t>(image->channels), "pixels that are no image");
  const int64_t other = image->channels == 1 ? 3 : 1;
  Check(data::WithChannels(*std::move(image), other).pixels.size() == places * static_cast<size_t>(other), "channels");
}

}  // namespace ampd::fuzz

#endif  // AMPD_TESTS_FUZZ_IMAGE_H_
