// `glyphs`: the digits 0 to 9 drawn with strokes on 28x28 pixels, distorted, noisy and cluttered; made from a seed.
#ifndef AMPD_ENGINE_DATA_GLYPHS_H_
#define AMPD_ENGINE_DATA_GLYPHS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

inline constexpr int64_t kGlyphSide = 28;
inline constexpr int64_t kGlyphClasses = 10;

// Draws sample `index` of the set with this seed: kGlyphSide^2 bytes, row by row; paper is dark, ink is bright. The
// digit is index % 10. Follows from (seed, index) alone, with the same bytes on every machine.
void DrawGlyph(uint64_t seed, int64_t index, absl::Span<uint8_t> out);

// Default seed 1, or 2 when `is_eval`. INVALID_ARGUMENT when samples < 1; `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenGlyphs(const v1::GlyphsDataset& spec, bool is_eval, int64_t limit);
absl::StatusOr<DatasetInfo> DescribeGlyphs(const v1::GlyphsDataset& spec, bool is_eval, int64_t limit);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_GLYPHS_H_
