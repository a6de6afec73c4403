#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kFloat8Types[] = {DType::kF8E4M3, DType::kF8E5M2};

// Largest and smallest of an integer dtype.
double Highest(DType t) { return t == DType::kU8 ? 255 : t == DType::kI32 ? 0x1p31 - 1 : 0x1p63; }
double Lowest(DType t) { return t == DType::kU8 ? 0 : t == DType::kI32 ? -0x1p31 : -0x1p63; }

double Converted(double v, DType from, DType to) {
  if (IsHalf(to) || to == DType::kF32) return RoundToDType(v, to);
  if (IsF8(to)) return v;
  if (to == DType::kBool) return v != 0 ? 1 : 0;
  if (!IsFloat(from)) return Wrapped(v, to);
  return std::isnan(v) ? 0 : std::min(std::max(std::trunc(v), Lowest(to)), Highest(to));
}

DType DTypeNamed(const std::string& name) {
  for (DType t : kEveryType) {
    if (DTypeName(t) == absl::string_view(name)) return t;
  }
  return DType::kF32;
}

RefTensors Cast(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = in[0];
  for (double& v : y.data) v = Converted(v, desc.inputs[0].dtype, DTypeNamed(desc.attributes.String("dtype")));
  return {y};
}

// Integers between the 16-bit formats' steps; floats past every integer dtype but i64.
RefTensor Input(const NodeDesc& desc, int, Random* random) {
  const ir::TensorType& type = desc.inputs[0];
  if (type.dtype == DType::kU8) return SmallIntegers(type, random, 0, 255);
  if (!IsFloat(type.dtype)) return SmallIntegers(type, random, -(int64_t{1} << 30), int64_t{1} << 30);
  if (IsFloat(DTypeNamed(desc.attributes.String("dtype")))) return {};
  RefTensor x = RandomTensor(random, type.shape, type.dtype, -300, 300);
  for (double& v : x.data) {
    const int64_t kind = random->Below(24);
    if (kind == 0) v = std::numeric_limits<double>::quiet_NaN();
    if (kind == 1) v = std::numeric_limits<double>::infinity();
    if (kind == 2) v = RoundToDType(-3e4 * random->Uniform(0, 1e6), type.dtype);
    if (kind == 3) v = 0.5;
  }
  return x;
}

}  // namespace

std::vector<OpRow> CastRows() {
  OpRow row{.op = OpKind::kCast,
            .cases = SameShapes(1),
            .gradient_cases = {{{{"dtype", std::string("f32")}}, {{3, 2}}}},
            .reference = Cast,
            .input = Input};
  for (DType from : kEveryType) {
    for (DType to : kEveryType) {
      if ((IsF8(from) && !IsFloat(to)) || (IsF8(to) && !IsFloat(from))) continue;
      row.signatures.push_back({{from}, {to}});
    }
  }
  return {row};
}

}  // namespace ampd::testing
