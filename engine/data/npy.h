// One NumPy array in the .npy format (numpy.lib.format: versions 1.0, 2.0 and 3.0), read from a stream.
#ifndef AMPD_ENGINE_DATA_NPY_H_
#define AMPD_ENGINE_DATA_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/shape.h"
#include "engine/data/byte_source.h"
#include "engine/data/memory_dataset.h"

namespace ampd::data {

struct NpyHeader {
  // NumPy's kind, 'u', 'i' or 'f', and the bytes per element: u1 u2 u4, i1 i2 i4 i8 or f2 f4 f8, little-endian.
  char kind = 'f';
  int64_t element_size = 4;
  // C order. Every extent >= 1.
  Shape shape;

  bool is_byte() const { return kind == 'u' && element_size == 1; }
  // "u1", "f4", ...
  std::string dtype() const { return absl::StrCat(absl::string_view(&kind, 1), element_size); }
};

// The text of an .npy header, e.g. "{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }". DATA_LOSS when
// it is not such a text; UNIMPLEMENTED for other dtypes, big-endian numbers, and Fortran order of two or more
// dimensions.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text, absl::string_view name);

// Reads magic, version and header, and checks that the source may hold an array of that size.
absl::StatusOr<NpyHeader> ReadNpyHeader(ByteSource& source);

// The array's values after ReadNpyHeader, to the end of the source.
absl::StatusOr<std::vector<uint8_t>> ReadNpyBytes(ByteSource& source, const NpyHeader& header);

// Floats, f8 rounded to nearest. Of each sample (index along the first dimension) the first that is then no finite
// number is added to `non_finite`.
absl::StatusOr<std::vector<float>> ReadNpyFloats(ByteSource& source, const NpyHeader& header,
                                                 std::vector<NonFinite>& non_finite);

// Integers; DATA_LOSS naming the element that does not fit 32 bits.
absl::StatusOr<std::vector<int32_t>> ReadNpyIntegers(ByteSource& source, const NpyHeader& header);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_NPY_H_
