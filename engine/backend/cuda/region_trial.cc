#include "engine/backend/cuda/region_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/float8.h"
#include "engine/core/half.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

// A prime, so that no extent of a tensor divides it and rows differ.
constexpr int64_t kDrawn = 1'048'573;
constexpr int64_t kPieces = 256;
constexpr int64_t kPieceElements = 1 << 14;
// What may lie between two ways, in roundings of the product and the result.
constexpr double kRoundings = 4;

// And, as a share of the largest product, what sums in another order may be apart.
double ShareOfLargest(SumsOf sums) {
  if (sums == SumsOf::kTf32Operands) return 0x1p-10;
  if (sums == SumsOf::k8BitOperands) return 0x1p-11;
  return sums == SumsOf::kF32Operands ? 0x1p-16 : 0x1p-14;
}

// In [-1, 1): the generator of Steele et al. 2014 (splitmix64) at a place.
float RandomAt(size_t input, int64_t element) {
  uint64_t z = (static_cast<uint64_t>(input + 1) << 56) + static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

void Store(float value, DType dtype, char* to) {
  if (dtype == DType::kF32) std::memcpy(to, &value, sizeof(value));
  if (dtype == DType::kF16) *reinterpret_cast<Half*>(to) = ToHalf(value);
  if (dtype == DType::kBF16) *reinterpret_cast<BFloat16*>(to) = ToBFloat16(value);
  if (dtype == DType::kF8E4M3) *reinterpret_cast<Float8E4M3*>(to) = ToFloat8E4M3(value);
  if (dtype == DType::kF8E5M2) *reinterpret_cast<Float8E5M2*>(to) = ToFloat8E5M2(value);
}

std::vector<char> Draw(size_t input, int64_t count, float bound, DType dtype) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  std::vector<char> bytes(static_cast<size_t>(count) * size);
  for (int64_t i = 0; i < count; ++i) {
    Store(bound * RandomAt(input, i), dtype, bytes.data() + static_cast<size_t>(i) * size);
  }
  return bytes;
}

void AppendFloats(const std::vector<char>& bytes, DType dtype, std::vector<float>* values) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  for (size_t at = 0; at < bytes.size(); at += size) {
    float value = 0;
    if (dtype == DType::kF32) std::memcpy(&value, bytes.data() + at, size);
    if (dtype == DType::kF16) value = ToFloat(*reinterpret_cast<const Half*>(bytes.data() + at));
    if (dtype == DType::kBF16) value = ToFloat(*reinterpret_cast<const BFloat16*>(bytes.data() + at));
    values->push_back(value);
  }
}

absl::StatusOr<DeviceArray> Allocate(const ir::TensorType& type) {
  return DeviceArray::Allocate(NumElements(type.shape) * SizeOf(type.dtype), "a trial");
}

}  // namespace

absl::StatusOr<RegionTrial> RegionTrial::Create(Context* context, const std::vector<ir::TensorType>& inputs,
                                                const std::vector<float>& bounds,
                                                const std::vector<ir::TensorType>& outputs) {
  RegionTrial trial;
  trial.context_ = context;
  CudaMemory memory(context);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ir::TensorType& type = inputs[i];
    AMPD_ASSIGN_OR_RETURN(DeviceArray array, Allocate(type));
    const int64_t elements = NumElements(type.shape), size = SizeOf(type.dtype);
    std::vector<char> drawn = Draw(i, std::min(elements, kDrawn), bounds[i], type.dtype);
    if (type.shape.empty()) Store(bounds[i], type.dtype, drawn.data());
    for (int64_t at = 0; at < elements; at += kDrawn) {
      AMPD_RETURN_IF_ERROR(
          memory.Upload(drawn.data(), std::min(elements - at, kDrawn) * size, array.as<char>() + at * size));
    }
    AMPD_RETURN_IF_ERROR(context->Wait());
    trial.inputs_.push_back({array.as<void>(), type.dtype, type.shape});
    trial.memory_.push_back(std::move(array));
  }
  for (const ir::TensorType& type : outputs) {
    AMPD_ASSIGN_OR_RETURN(DeviceArray array, Allocate(type));
    trial.outputs_.push_back({array.as<void>(), type.dtype, type.shape});
    trial.memory_.push_back(std::move(array));
  }
  return trial;
}

absl::Status RegionTrial::Poison() const {
  for (const TensorView& output : outputs_) {
    AMPD_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(output.data, 0xff, static_cast<size_t>(output.bytes()), context_->stream()), "a trial");
  }
  return absl::OkStatus();
}

absl::Status RegionTrial::Spoil() const {
  CudaMemory memory(context_);
  const auto put = [&](const TensorView& tensor, int64_t element, float value) -> absl::Status {
    char bytes[sizeof(float)] = {};
    Store(value, tensor.dtype, bytes);
    AMPD_RETURN_IF_ERROR(
        memory.Upload(bytes, SizeOf(tensor.dtype), tensor.as<char>() + element * SizeOf(tensor.dtype)));
    return context_->Wait();
  };
  for (const TensorView& input : inputs_) {
    if (!input.shape.empty()) AMPD_RETURN_IF_ERROR(put(input, 0, NAN));
  }
  return put(inputs_.front(), inputs_.front().size() - 1, INFINITY);
}

absl::StatusOr<std::vector<float>> SampleOf(Context* context, const TensorView& tensor) {
  const int64_t elements = tensor.size(), size = SizeOf(tensor.dtype);
  const bool whole = elements <= kPieces * kPieceElements;
  const int64_t piece = whole ? elements : kPieceElements, pieces = whole ? 1 : kPieces;
  std::vector<char> bytes(static_cast<size_t>(piece * size));
  std::vector<float> values;
  values.reserve(static_cast<size_t>(piece * pieces));
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t at = whole ? 0 : (elements - piece) * p / (pieces - 1);
    AMPD_RETURN_IF_ERROR(CudaMemory(context).Download(tensor.as<char>() + at * size, piece * size, bytes.data()));
    AppendFloats(bytes, tensor.dtype, &values);
  }
  return values;
}

std::string DifferenceOf(const std::vector<float>& product, const std::vector<float>& parts,
                         const std::vector<float>& joined, DType dtype, SumsOf sums) {
  const double rounding = kRoundings * UnitRoundoff(dtype);
  double largest = 0;
  for (float v : product) {
    if (std::isfinite(v)) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    bool alike = product[i] == -INFINITY;
    if (!std::isfinite(parts[i])) {
      alike = alike || !std::isfinite(joined[i]);
    } else {
      const double size = std::fabs(static_cast<double>(parts[i])) + std::fabs(static_cast<double>(product[i]));
      const double apart = std::fabs(static_cast<double>(parts[i]) - static_cast<double>(joined[i]));
      alike = alike || apart <= rounding * size + ShareOfLargest(sums) * largest;
    }
    if (!alike) return absl::StrCat("sample ", i, " is ", joined[i], ", of the parts ", parts[i]);
  }
  return "";
}

}  // namespace ampd::cuda
