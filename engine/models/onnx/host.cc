#include "engine/models/onnx/host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/core/float8.h"
#include "engine/core/half.h"

namespace ampd::models::onnx {
namespace {

// Rounds a double to f32 so that a second rounding, to a narrower type, gives the nearest value of that type: where f32
// is inexact, towards the odd neighbour (Boldo and Melquiond 2008).
float ToOddFloat(double value) {
  float f = static_cast<float>(value);
  if (std::isnan(value) || std::isinf(f) || static_cast<double>(f) == value || (FloatBits(f) & 1u) != 0) return f;
  return std::nextafter(f, static_cast<double>(f) < value ? std::numeric_limits<float>::infinity()
                                                          : -std::numeric_limits<float>::infinity());
}

void SetDouble(const TensorView& t, int64_t i, double v) {
  switch (t.dtype) {
    case DType::kF32:
      t.as<float>()[i] = static_cast<float>(v);
      return;
    case DType::kF16:
      t.as<Half>()[i] = ToHalf(ToOddFloat(v));
      return;
    case DType::kBF16:
      t.as<BFloat16>()[i] = ToBFloat16(ToOddFloat(v));
      return;
    case DType::kF8E4M3:
      t.as<Float8E4M3>()[i] = ToFloat8E4M3(ToOddFloat(v));
      return;
    case DType::kF8E5M2:
      t.as<Float8E5M2>()[i] = ToFloat8E5M2(ToOddFloat(v));
      return;
    default:
      return;
  }
}

void SetInt(const TensorView& t, int64_t i, int64_t v) {
  switch (t.dtype) {
    case DType::kI32:
      t.as<int32_t>()[i] = static_cast<int32_t>(v);
      return;
    case DType::kI64:
      t.as<int64_t>()[i] = v;
      return;
    case DType::kU8:
      t.as<uint8_t>()[i] = static_cast<uint8_t>(v);
      return;
    case DType::kBool:
      t.as<uint8_t>()[i] = v != 0;
      return;
    default:
      return;
  }
}

int64_t TruncateToInt(double v) {
  return v >= -0x1p63 && v < 0x1p63 ? static_cast<int64_t>(v) : 0;  // false for NaN
}

// Calls visit(i, offset...) for each element of `shape`, in order, with one offset a list of strides.
template <size_t kLists, typename Visit>
void ForEach(const Shape& shape, const std::vector<int64_t> (&strides)[kLists], const Visit& visit) {
  const int64_t n = NumElements(shape);
  std::vector<int64_t> index(shape.size(), 0);
  int64_t at[kLists] = {};
  for (int64_t i = 0; i < n; ++i) {
    visit(i, at);
    for (size_t a = shape.size(); a-- > 0;) {
      for (size_t l = 0; l < kLists; ++l) at[l] += strides[l][a];
      if (++index[a] < shape[a]) break;
      for (size_t l = 0; l < kLists; ++l) at[l] -= strides[l][a] * shape[a];
      index[a] = 0;
    }
  }
}

double UnaryOf(absl::string_view op, double x, bool* known) {
  *known = true;
  if (op == "neg") return -x;
  if (op == "abs") return std::fabs(x);
  if (op == "exp") return std::exp(x);
  if (op == "log") return std::log(x);
  if (op == "sqrt") return std::sqrt(x);
  if (op == "reciprocal") return 1 / x;
  if (op == "floor") return std::floor(x);
  if (op == "ceil") return std::ceil(x);
  if (op == "round") return std::nearbyint(x);
  if (op == "sign") return x > 0 ? 1 : x < 0 ? -1 : x;
  if (op == "sin") return std::sin(x);
  if (op == "cos") return std::cos(x);
  if (op == "tanh") return std::tanh(x);
  if (op == "erf") return std::erf(x);
  if (op == "relu") return x <= 0 ? 0 : x;
  *known = false;
  return 0;
}

double FloatBinary(absl::string_view op, double a, double b, bool* known) {
  *known = true;
  if (op == "add") return a + b;
  if (op == "sub") return a - b;
  if (op == "mul") return a * b;
  if (op == "div") return a / b;
  if (op == "pow") return std::pow(a, b);
  if (op == "max") return std::isnan(a) || a > b ? a : b;
  if (op == "min") return std::isnan(a) || a < b ? a : b;
  *known = false;
  return 0;
}

int64_t IntPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e > 0; e >>= 1, factor *= factor) {
    if (e & 1) result *= factor;
  }
  return static_cast<int64_t>(result);
}

int64_t IntBinary(absl::string_view op, int64_t a, int64_t b, bool* known) {
  const auto wrap = [](uint64_t x) { return static_cast<int64_t>(x); };
  const uint64_t ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  *known = true;
  if (op == "add") return wrap(ua + ub);
  if (op == "sub") return wrap(ua - ub);
  if (op == "mul") return wrap(ua * ub);
  if (op == "max") return std::max(a, b);
  if (op == "min") return std::min(a, b);
  if (op == "pow") return IntPower(a, b);
  if ((op == "div" || op == "mod") && b != 0) {
    if (b == -1) return op == "div" ? wrap(0 - ua) : 0;
    if (op == "div") return a / b;
    const int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
  *known = false;
  return 0;
}

template <typename T>
bool Comparison(absl::string_view op, T a, T b, bool* known) {
  *known = true;
  if (op == "equal") return a == b;
  if (op == "less") return a < b;
  if (op == "greater") return a > b;
  if (op == "less_equal") return a <= b;
  if (op == "greater_equal") return a >= b;
  if (op == "logical_and") return a != 0 && b != 0;
  if (op == "logical_or") return a != 0 || b != 0;
  if (op == "logical_xor") return (a != 0) != (b != 0);
  *known = false;
  return false;
}

double LeastOf(DType t) {
  switch (t) {
    case DType::kI32:
      return std::numeric_limits<int32_t>::min();
    case DType::kI64:
      return -0x1p63;
    case DType::kU8:
    case DType::kBool:
      return 0;
    default:
      return -std::numeric_limits<double>::infinity();
  }
}

double IdentityOf(absl::string_view op, DType t) {
  if (op == "reduce_prod") return 1;
  if (op == "reduce_max") return LeastOf(t);
  if (op != "reduce_min") return 0;
  if (IsFloat(t)) return std::numeric_limits<double>::infinity();
  return t == DType::kBool ? 1 : t == DType::kU8 ? 255 : -(LeastOf(t) + 1);
}

}  // namespace

TensorPtr HostInts(absl::Span<const int64_t> values) {
  auto t = std::make_shared<Tensor>(DType::kI64, Shape{static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t->as<int64_t>().begin());
  return t;
}

TensorPtr HostFilled(DType dtype, const Shape& shape, double value) {
  auto t = std::make_shared<Tensor>(dtype, shape);
  const TensorView view = t->view();
  for (int64_t i = 0; i < view.size(); ++i) {
    if (IsFloat(dtype)) SetDouble(view, i, value);
    if (!IsFloat(dtype)) SetInt(view, i, value >= 0x1p63 ? std::numeric_limits<int64_t>::max() : TruncateToInt(value));
  }
  return t;
}

double DoubleAt(const TensorView& t, int64_t i) {
  switch (t.dtype) {
    case DType::kF32:
      return t.as<float>()[i];
    case DType::kF16:
      return ToFloat(t.as<Half>()[i]);
    case DType::kBF16:
      return ToFloat(t.as<BFloat16>()[i]);
    case DType::kF8E4M3:
      return ToFloat(t.as<Float8E4M3>()[i]);
    case DType::kF8E5M2:
      return ToFloat(t.as<Float8E5M2>()[i]);
    default:
      return static_cast<double>(IntAt(t, i));
  }
}

int64_t IntAt(const TensorView& t, int64_t i) {
  switch (t.dtype) {
    case DType::kI32:
      return t.as<int32_t>()[i];
    case DType::kI64:
      return t.as<int64_t>()[i];
    case DType::kU8:
    case DType::kBool:
      return t.as<uint8_t>()[i];
    default:
      return TruncateToInt(DoubleAt(t, i));
  }
}

std::vector<int64_t> ToInts(const Tensor& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = IntAt(tensor.view(), static_cast<int64_t>(i));
  return values;
}

std::vector<double> ToDoubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = DoubleAt(tensor.view(), static_cast<int64_t>(i));
  return values;
}

TensorPtr HostReshape(const TensorPtr& x, const Shape& shape) {
  if (x->shape() == shape) return x;
  auto y = std::make_shared<Tensor>(x->dtype(), shape);
  if (x->size() > 0) std::memcpy(y->view().data, x->view().data, static_cast<size_t>(x->view().bytes()));
  return y;
}

TensorPtr HostStrided(const Tensor& x, const Shape& shape, absl::Span<const int64_t> strides, int64_t offset) {
  auto y = std::make_shared<Tensor>(x.dtype(), shape);
  const size_t size = static_cast<size_t>(SizeOf(x.dtype()));
  const char* from = x.view().as<char>() + offset * static_cast<int64_t>(size);
  char* to = y->view().as<char>();
  const std::vector<int64_t> lists[1] = {{strides.begin(), strides.end()}};
  ForEach(shape, lists, [&](int64_t i, const int64_t* at) {
    std::memcpy(to + static_cast<size_t>(i) * size, from + at[0] * static_cast<int64_t>(size), size);
  });
  return y;
}

TensorPtr HostConcat(const std::vector<TensorPtr>& parts, int axis) {
  Shape shape = parts[0]->shape();
  shape[axis] = 0;
  for (const TensorPtr& part : parts) shape[axis] += part->shape()[axis];
  auto y = std::make_shared<Tensor>(parts[0]->dtype(), shape);
  const int64_t outer = NumElements(absl::MakeSpan(shape).subspan(0, axis));
  char* to = y->view().as<char>();
  for (int64_t o = 0; o < outer; ++o) {
    for (const TensorPtr& part : parts) {
      const int64_t bytes = part->view().bytes() / std::max<int64_t>(outer, 1);
      if (bytes > 0) std::memcpy(to, part->view().as<char>() + o * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
  }
  return y;
}

TensorPtr HostGather(const Tensor& x, absl::Span<const int64_t> indices, const Shape& index_shape, int axis) {
  const Shape& from = x.shape();
  Shape shape(from.begin(), from.begin() + axis);
  shape.insert(shape.end(), index_shape.begin(), index_shape.end());
  shape.insert(shape.end(), from.begin() + axis + 1, from.end());
  auto y = std::make_shared<Tensor>(x.dtype(), shape);
  if (y->size() == 0) return y;
  const int64_t inner = NumElements(absl::MakeSpan(from).subspan(axis + 1)) * SizeOf(x.dtype());
  const int64_t outer = NumElements(absl::MakeSpan(from).subspan(0, axis));
  char* to = y->view().as<char>();
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t index : indices) {
      std::memcpy(to, x.view().as<char>() + (o * from[axis] + index) * inner, static_cast<size_t>(inner));
      to += inner;
    }
  }
  return y;
}

TensorPtr HostCast(const TensorPtr& x, DType dtype, bool saturate) {
  if (x->dtype() == dtype) return x;
  auto y = std::make_shared<Tensor>(dtype, x->shape());
  const TensorView from = x->view(), to = y->view();
  for (int64_t i = 0; i < from.size(); ++i) {
    if (!IsFloat(dtype)) {
      const bool nonzero = dtype == DType::kBool && IsFloat(from.dtype);
      SetInt(to, i, nonzero ? DoubleAt(from, i) != 0 : IntAt(from, i));
    } else if (saturate && dtype == DType::kF8E4M3) {
      to.as<Float8E4M3>()[i] = ToFloat8E4M3Saturating(ToOddFloat(DoubleAt(from, i)));
    } else if (saturate && dtype == DType::kF8E5M2) {
      to.as<Float8E5M2>()[i] = ToFloat8E5M2Saturating(ToOddFloat(DoubleAt(from, i)));
    } else {
      SetDouble(to, i, DoubleAt(from, i));
    }
  }
  return y;
}

std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t a = shape.size(); a-- > 0;) {
    strides[a] = stride;
    stride *= shape[a];
  }
  return strides;
}

std::vector<int64_t> BroadcastStrides(const Shape& shape, const Shape& to) {
  const std::vector<int64_t> own = StridesOf(shape);
  std::vector<int64_t> strides(to.size(), 0);
  for (size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] != 1) strides[to.size() - shape.size() + a] = own[a];
  }
  return strides;
}

absl::optional<Shape> BroadcastShape(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t ea = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t eb = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (ea != eb && ea != 1 && eb != 1) return absl::nullopt;
    shape[shape.size() - 1 - i] = ea == 1 ? eb : ea;
  }
  return shape;
}

TensorPtr HostUnary(absl::string_view op, const Tensor& x) {
  auto y = std::make_shared<Tensor>(x.dtype(), x.shape());
  bool known = true;
  for (int64_t i = 0; i < x.size() && known; ++i) {
    if (IsFloat(x.dtype())) {
      SetDouble(y->view(), i, UnaryOf(op, DoubleAt(x.view(), i), &known));
    } else if (op == "logical_not") {
      SetInt(y->view(), i, IntAt(x.view(), i) == 0);
    } else {
      const int64_t v = IntAt(x.view(), i);
      known = op == "neg" || op == "abs" || op == "relu";
      SetInt(y->view(), i,
             v < 0 && op == "relu"  ? 0
             : op == "neg" || v < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(v))
                                    : v);
    }
  }
  return known ? y : nullptr;
}

TensorPtr HostBinary(absl::string_view op, const Tensor& a, const Tensor& b) {
  const Shape shape = *BroadcastShape(a.shape(), b.shape());
  bool compares = false;
  Comparison<int64_t>(op, 0, 0, &compares);
  auto y = std::make_shared<Tensor>(compares ? DType::kBool : a.dtype(), shape);
  const TensorView to = y->view(), va = a.view(), vb = b.view();
  const std::vector<int64_t> strides[2] = {BroadcastStrides(a.shape(), shape), BroadcastStrides(b.shape(), shape)};
  bool all_known = true, known = true;
  ForEach(shape, strides, [&](int64_t i, const int64_t* at) {
    if (compares && IsFloat(a.dtype())) {
      SetInt(to, i, Comparison(op, DoubleAt(va, at[0]), DoubleAt(vb, at[1]), &known));
    } else if (compares) {
      SetInt(to, i, Comparison(op, IntAt(va, at[0]), IntAt(vb, at[1]), &known));
    } else if (IsFloat(a.dtype())) {
      SetDouble(to, i, FloatBinary(op, DoubleAt(va, at[0]), DoubleAt(vb, at[1]), &known));
    } else {
      SetInt(to, i, IntBinary(op, IntAt(va, at[0]), IntAt(vb, at[1]), &known));
    }
    all_known = all_known && known;
  });
  return all_known ? y : nullptr;
}

TensorPtr HostWhere(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Shape shape = *BroadcastShape(condition.shape(), *BroadcastShape(a.shape(), b.shape()));
  auto y = std::make_shared<Tensor>(a.dtype(), shape);
  const int64_t size = SizeOf(a.dtype());
  const std::vector<int64_t> strides[3] = {BroadcastStrides(condition.shape(), shape),
                                           BroadcastStrides(a.shape(), shape), BroadcastStrides(b.shape(), shape)};
  ForEach(shape, strides, [&](int64_t i, const int64_t* at) {
    const bool first = condition.view().as<uint8_t>()[at[0]] != 0;
    const char* from = first ? a.view().as<char>() + at[1] * size : b.view().as<char>() + at[2] * size;
    std::memcpy(y->view().as<char>() + i * size, from, static_cast<size_t>(size));
  });
  return y;
}

TensorPtr HostReduce(absl::string_view op, const Tensor& x, const std::vector<bool>& axes) {
  Shape shape = x.shape();
  double count = 1;
  for (size_t a = 0; a < shape.size(); ++a) {
    if (!axes[a]) continue;
    count *= static_cast<double>(shape[a]);
    shape[a] = 1;
  }
  const bool sums = op == "reduce_sum" || op == "reduce_mean";
  const absl::string_view step = sums ? "add" : op == "reduce_prod" ? "mul" : op == "reduce_max" ? "max" : "min";
  const std::vector<int64_t> strides[1] = {BroadcastStrides(shape, x.shape())};
  bool known = true;
  TensorPtr filled = HostFilled(x.dtype(), shape, IdentityOf(op, x.dtype()));
  auto y = std::const_pointer_cast<Tensor>(filled);
  if (!IsFloat(x.dtype())) {
    ForEach(x.shape(), strides, [&](int64_t i, const int64_t* at) {
      SetInt(y->view(), at[0], IntBinary(step, IntAt(y->view(), at[0]), IntAt(x.view(), i), &known));
    });
    for (int64_t i = 0; op == "reduce_mean" && count > 0 && i < y->size(); ++i) {
      SetInt(y->view(), i, IntAt(y->view(), i) / static_cast<int64_t>(count));
    }
    return y;
  }
  std::vector<double> sums_of(static_cast<size_t>(y->size()), IdentityOf(op, x.dtype()));
  ForEach(x.shape(), strides, [&](int64_t i, const int64_t* at) {
    sums_of[at[0]] = FloatBinary(step, sums_of[at[0]], DoubleAt(x.view(), i), &known);
  });
  for (size_t i = 0; i < sums_of.size(); ++i) {
    SetDouble(y->view(), static_cast<int64_t>(i), op == "reduce_mean" ? sums_of[i] / count : sums_of[i]);
  }
  return y;
}

}  // namespace ampd::models::onnx
