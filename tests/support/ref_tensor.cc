#include "tests/support/ref_tensor.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace ampd::testing {
namespace {

struct Format {
  int precision;     // significant bits
  int min_exponent;  // of normal values, as ilogb gives it
  int max_exponent;
  int bits = 32;
};

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {11, -14, 15, 16};
    case DType::kBF16:
      return {8, -126, 127, 16};
    case DType::kF8E4M3:
      return {4, -6, 8, 8};
    case DType::kF8E5M2:
      return {3, -14, 15, 8};
    default:
      return {24, -126, 127};
  }
}

// e4m3fn spends its largest exponent on numbers: only the code of all ones is a NaN, and nothing is infinite.
bool HasInfinity(DType dtype) { return dtype != DType::kF8E4M3; }

int FractionMask(const Format& format) { return (1 << (format.precision - 1)) - 1; }

// The exponent that stands for 1.0; the smallest normal value has exponent code 1.
int Bias(const Format& format) { return 1 - format.min_exponent; }

int NaNCode(DType dtype) {
  const Format format = FormatOf(dtype);
  if (format.bits == 8) return 0x7f;
  return (2 * format.max_exponent + 1) << (format.precision - 1) | 1 << (format.precision - 2);
}

// Sign, biased exponent and fraction of a value that the 16- or 8-bit format holds exactly.
uint16_t EncodeSmall(double value, DType dtype) {
  const Format format = FormatOf(dtype);
  const int fraction_bits = format.precision - 1;
  const int sign = std::signbit(value) ? 1 << (format.bits - 1) : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | NaNCode(dtype));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | (2 * format.max_exponent + 1) << fraction_bits);
  const double magnitude = std::fabs(value);
  const int exponent = magnitude == 0 ? format.min_exponent : std::max(std::ilogb(magnitude), format.min_exponent);
  const int significand = static_cast<int>(std::ldexp(magnitude, fraction_bits - exponent));
  const bool normal = significand > FractionMask(format);
  const int biased = normal ? exponent + Bias(format) : 0;
  return static_cast<uint16_t>(sign | (biased << fraction_bits) | (significand & FractionMask(format)));
}

double DecodeSmall(uint16_t bits, DType dtype) {
  const Format format = FormatOf(dtype);
  const int fraction_bits = format.precision - 1;
  const int magnitude = bits & ((1 << (format.bits - 1)) - 1);
  const int fraction = magnitude & FractionMask(format);
  const int biased = magnitude >> fraction_bits;
  const double sign = bits >> (format.bits - 1) != 0 ? -1.0 : 1.0;
  const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (!HasInfinity(dtype) && magnitude == NaNCode(dtype)) return nan;
  if (HasInfinity(dtype) && biased == 2 * format.max_exponent + 1) {
    return fraction != 0 ? nan : sign * std::numeric_limits<double>::infinity();
  }
  if (biased == 0) return sign * std::ldexp(fraction, format.min_exponent - fraction_bits);
  return sign * std::ldexp(fraction + FractionMask(format) + 1, biased - Bias(format) - fraction_bits);
}

template <typename T>
void Put(void* data, int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Get(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

RefTensor Filled(Shape shape, double value) {
  const int64_t n = NumElements(shape);
  return {std::move(shape), std::vector<double>(n, value)};
}

double RoundToDType(double value, DType dtype) {
  if (!IsFloat(dtype)) return std::nearbyint(value);
  if (std::isnan(value) || value == 0) return value;
  const double overflow =
      HasInfinity(dtype) ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (std::isinf(value)) return std::copysign(overflow, value);
  const Format format = FormatOf(dtype);
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.precision + 1);
  const double rounded = std::nearbyint(value / ulp) * ulp;
  const double limit = HasInfinity(dtype) ? std::ldexp(1.0, format.max_exponent + 1) : 480;
  return std::fabs(rounded) < limit ? rounded : std::copysign(overflow, value);
}

void CopyTo(const RefTensor& reference, const TensorView& tensor) {
  for (int64_t i = 0; i < reference.size(); ++i) {
    const double value = RoundToDType(reference.data[i], tensor.dtype);
    switch (tensor.dtype) {
      case DType::kF32:
        Put(tensor.data, i, static_cast<float>(value));
        break;
      case DType::kF16:
      case DType::kBF16:
        Put(tensor.data, i, EncodeSmall(value, tensor.dtype));
        break;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        Put(tensor.data, i, static_cast<uint8_t>(EncodeSmall(value, tensor.dtype)));
        break;
      case DType::kI32:
        Put(tensor.data, i, static_cast<int32_t>(value));
        break;
      case DType::kI64:
        Put(tensor.data, i, static_cast<int64_t>(value));
        break;
      case DType::kU8:
      case DType::kBool:
        Put(tensor.data, i, static_cast<uint8_t>(value));
        break;
    }
  }
}

Tensor ToTensor(const RefTensor& reference, DType dtype) {
  Tensor tensor(dtype, reference.shape);
  CopyTo(reference, tensor.view());
  return tensor;
}

RefTensor FromTensor(const TensorView& tensor) {
  RefTensor reference = Filled(tensor.shape);
  for (int64_t i = 0; i < reference.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF32:
        reference.data[i] = Get<float>(tensor.data, i);
        break;
      case DType::kF16:
      case DType::kBF16:
        reference.data[i] = DecodeSmall(Get<uint16_t>(tensor.data, i), tensor.dtype);
        break;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        reference.data[i] = DecodeSmall(Get<uint8_t>(tensor.data, i), tensor.dtype);
        break;
      case DType::kI32:
        reference.data[i] = Get<int32_t>(tensor.data, i);
        break;
      case DType::kI64:
        reference.data[i] = static_cast<double>(Get<int64_t>(tensor.data, i));
        break;
      case DType::kU8:
      case DType::kBool:
        reference.data[i] = Get<uint8_t>(tensor.data, i);
        break;
    }
  }
  return reference;
}

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Random::Uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(Next() >> 11) * 0x1p-53;
}

RefTensor RandomTensor(Random* random, Shape shape, DType dtype, double low, double high) {
  RefTensor tensor = Filled(std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    double value = random->Uniform(low, high);
    const int64_t odd = random->Below(24);
    if (odd == 0 && low <= 0) value = 0;
    if (odd == 1 && i > 0) value = tensor.data[i - 1];
    if (odd == 2 && low <= 0) value *= 0x1p-12;
    tensor.data[i] = RoundToDType(value, dtype);
  }
  return tensor;
}

}  // namespace ampd::testing
