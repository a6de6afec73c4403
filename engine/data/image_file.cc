#include "engine/data/image_file.h"

#include <array>
#include <utility>

namespace ampd::data {
namespace {

constexpr std::array<uint8_t, 3> kJpegStart = {0xff, 0xd8, 0xff};
constexpr std::array<uint8_t, 8> kPngStart = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool StartsWith(absl::Span<const uint8_t> file, absl::Span<const uint8_t> start) {
  return file.size() >= start.size() && file.subspan(0, start.size()) == start;
}

// In 16 bits of fraction; the weights add up to exactly 1, so white stays white.
uint8_t Luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + (1 << 15)) >> 16);
}

}  // namespace

absl::StatusOr<Image> DecodeImage(absl::Span<const uint8_t> file) {
  if (StartsWith(file, kJpegStart)) return DecodeJpeg(file);
  if (StartsWith(file, kPngStart)) return DecodePng(file);
  return absl::DataLossError(file.empty() ? "an empty file" : "neither a JPEG nor a PNG");
}

Image WithChannels(Image image, int64_t channels) {
  if (image.channels == channels) return image;
  const size_t pixels = static_cast<size_t>(image.height * image.width);
  std::vector<uint8_t> changed(pixels * static_cast<size_t>(channels));
  for (size_t p = 0; p < pixels; ++p) {
    if (channels == 1) {
      changed[p] = Luma(image.pixels.data() + 3 * p);
    } else {
      for (size_t c = 0; c < 3; ++c) changed[3 * p + c] = image.pixels[p];
    }
  }
  image.pixels = std::move(changed);
  image.channels = channels;
  return image;
}

}  // namespace ampd::data
