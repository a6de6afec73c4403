// JPEG and PNG files as pictures.
#ifndef AMPD_ENGINE_DATA_IMAGE_FILE_H_
#define AMPD_ENGINE_DATA_IMAGE_FILE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/image.h"

namespace ampd::data {

// Decodes a whole file; what it is, its first bytes say. JPEG (libjpeg's defaults: accurate integer DCT, smooth
// upsampling): grayscale, colour, and CMYK, which becomes colour. PNG: any; palettes are looked up, 16 bits are rounded
// to 8, transparency is dropped without blending. EXIF (a photo's orientation) and colour profiles are ignored.
// DATA_LOSS when it is neither, too large (engine/data/image.h), truncated or damaged; what libjpeg merely warns of
// counts as damage when pixels were lost. RESOURCE_EXHAUSTED when memory runs out.
absl::StatusOr<Image> DecodeImage(absl::Span<const uint8_t> file);

// The same for files that are known to be JPEG or PNG.
absl::StatusOr<Image> DecodeJpeg(absl::Span<const uint8_t> file);
absl::StatusOr<Image> DecodePng(absl::Span<const uint8_t> file);

// With 1 or 3 channels: gray is repeated; colours become their luma, 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), to
// nearest.
Image WithChannels(Image image, int64_t channels);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_IMAGE_FILE_H_
