#include "engine/train/finite_tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;
// At a time, which keeps the processor's vectors busy.
constexpr size_t kLanes = 16;

}  // namespace

bool AllFinite(absl::string_view f32_bytes) {
  // The bits of magnitudes order as the magnitudes do, with NaN above infinity.
  std::array<uint32_t, kLanes> largest{}, bits{};
  while (!f32_bytes.empty()) {
    const size_t count = std::min(f32_bytes.size(), sizeof(bits));
    bits.fill(0);
    std::memcpy(bits.data(), f32_bytes.data(), count);
    for (size_t i = 0; i < kLanes; ++i) largest[i] = std::max(largest[i], bits[i] & 0x7fffffffu);
    f32_bytes.remove_prefix(count);
  }
  return *std::max_element(largest.begin(), largest.end()) < kInfinity;
}

std::vector<TensorSource> MustBeFinite(std::vector<TensorSource> sources,
                                       const std::function<bool(const std::string&)>& which) {
  for (TensorSource& source : sources) {
    if (source.dtype != DType::kF32 || !which(source.name)) continue;
    source.bytes = [name = source.name, read = std::move(source.bytes)]() -> absl::StatusOr<absl::string_view> {
      AMPD_ASSIGN_OR_RETURN(const absl::string_view bytes, read());
      if (AllFinite(bytes)) return bytes;
      return WithFailureClass(
          absl::AbortedError(absl::StrCat(
              "training diverged: ", name,
              " is not finite: an update was too large, though its gradients were "
              "finite; the learning rate, the scale of the data, or a missing clip_global_norm is the cause")),
          v1::Failure::DIVERGED);
    };
  }
  return sources;
}

}  // namespace ampd::train
