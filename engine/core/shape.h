// Extents of a tensor, outermost first. Images are [batch, height, width, channels].
#ifndef AMPD_ENGINE_CORE_SHAPE_H_
#define AMPD_ENGINE_CORE_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace ampd {

// A scalar has no extents.
using Shape = absl::InlinedVector<int64_t, 6>;

inline int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

// "[32, 28, 28, 1]"
inline std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_SHAPE_H_
