#include "proto/spec/device_memory.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace ampd {

std::string Gibibytes(int64_t bytes) {
  constexpr int64_t kGibibyte = int64_t{1} << 30;
  if (bytes < kGibibyte) return absl::StrCat(bytes, " bytes");
  return absl::StrCat(std::round(1000.0 * static_cast<double>(bytes) / kGibibyte) / 1000, " GiB");
}

}  // namespace ampd
