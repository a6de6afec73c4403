#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/op_rows.h"
#include "tests/support/reference.h"
#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using Tensors = std::vector<RefTensor>;

RefTensor Magnitudes(RefTensor t) {
  for (double& v : t.data) v = std::fabs(v);
  return t;
}

// Terms in the sum behind one output, and operations on it, of the ops that are linear in each input.
double LinearTerms(const NodeDesc& desc) {
  const auto& in = desc.inputs;
  switch (desc.op) {
    case OpKind::kMatmul:
      // And scales that are divided by.
      return static_cast<double>(in[0].shape[in[0].shape.size() - (desc.attributes.Bool("transpose_a") ? 2 : 1)]) +
             (in.size() > 2 ? 8 : 0);
    case OpKind::kConv2d:
      return static_cast<double>(in[1].shape[1] * in[1].shape[2] * in[1].shape[3]);
    case OpKind::kConv2dGradInput:
      return static_cast<double>(in[1].shape[0] * in[1].shape[1] * in[1].shape[2]);
    case OpKind::kConv2dGradFilter:
      return static_cast<double>(in[0].shape[0] * in[0].shape[1] * in[0].shape[2]);
    case OpKind::kBiasAddGrad:
    case OpKind::kGlobalAvgPool:
      return static_cast<double>(NumElements(in[0].shape));
    case OpKind::kMaxPool2dGrad:
    case OpKind::kAvgPool2d:
    case OpKind::kAvgPool2dGrad: {
      const std::vector<int64_t> size = desc.attributes.Ints("size");
      return static_cast<double>(2 * size[0] * size[1]);
    }
    case OpKind::kBatchNormUpdate:
      return 8;
    default:
      return 2;
  }
}

bool NeedsOwnValues(OpKind op) { return op == OpKind::kMaxPool2dGrad || op == OpKind::kMaxPool2d; }

// Sums of magnitudes: the op on the magnitudes of its inputs. Where values choose the path (which element is the
// largest), only those that are summed lose their sign.
Tensors SumsOfMagnitudes(const NodeDesc& desc, Tensors inputs, const runtime::StepState& step) {
  const size_t count = NeedsOwnValues(desc.op) ? 1 : inputs.size();
  if (desc.op == OpKind::kMaxPool2d) return ReferenceOp(desc, inputs, step);
  for (size_t i = 0; i < count; ++i) inputs[i] = Magnitudes(std::move(inputs[i]));
  return ReferenceOp(desc, inputs, step);
}

double SumOver(const RefTensor& t, int64_t channel, double (*f)(double)) {
  double sum = 0;
  for (int64_t i = channel; i < t.size(); i += t.shape.back()) sum += f(t.data[i]);
  return sum;
}

// Of batch_norm and batch_norm_inference: the statistics are accurate to a few roundings of the values they are of.
Tensors NormMagnitudes(const NodeDesc& desc, const Tensors& in, const Tensors& out) {
  Tensors bounds = {Filled(in[0].shape)};
  const bool training = desc.op == OpKind::kBatchNorm;
  const RefTensor& mean = training ? out[1] : in[3];
  const RefTensor& var = training ? out[2] : in[4];
  const int64_t channels = in[0].shape.back();
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const int64_t c = i % channels;
    const double factor = std::fabs(in[1].data[c]) / std::sqrt(var.data[c] + desc.attributes.Double("epsilon"));
    bounds[0].data[i] = (std::fabs(in[0].data[i]) + std::fabs(mean.data[c])) * factor + std::fabs(in[2].data[c]);
  }
  if (!training) return bounds;
  // Sums in double, of values that may cancel; kF32Roundoff times Gamma(8) is far above double's own roundoff.
  bounds.push_back(Magnitudes(mean));
  bounds.push_back(Magnitudes(var));
  const double share = kF32Roundoff / static_cast<double>(in[0].size() / channels);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double x = std::fabs(in[0].data[i]);
    bounds[1].data[i % channels] += share * x;
    bounds[2].data[i % channels] += share * x * x;
  }
  return bounds;
}

Tensors NormGradMagnitudes(const NodeDesc& desc, Tensors in) {
  in[0] = BatchNormGated(desc, in);
  const int64_t channels = in[1].shape.back();
  const double count = static_cast<double>(in[1].size() / channels);
  Tensors bounds = {Filled(in[1].shape), Filled(Shape{channels}), Filled(Shape{channels})};
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = 1 / std::sqrt(in[4].data[c] + desc.attributes.Double("epsilon"));
    const double dy_sum = SumOver(in[0], c, [](double v) { return std::fabs(v); });
    double product = 0;
    for (int64_t i = c; i < in[1].size(); i += channels) {
      product += std::fabs(in[0].data[i] * (in[1].data[i] - in[3].data[c])) * inverse;
    }
    bounds[1].data[c] = product;
    bounds[2].data[c] = dy_sum;
    for (int64_t i = c; i < in[1].size(); i += channels) {
      const double normalized = std::fabs(in[1].data[i] - in[3].data[c]) * inverse;
      bounds[0].data[i] = std::fabs(in[2].data[c]) * inverse *
                          (std::fabs(in[0].data[i]) + dy_sum / count + normalized * product / count);
    }
  }
  return bounds;
}

Tensors OpMagnitudes(const NodeDesc& desc, const Tensors& in, const Tensors& out, const runtime::StepState& step) {
  switch (desc.op) {
    case OpKind::kBatchNorm:
    case OpKind::kBatchNormInference:
      return NormMagnitudes(desc, in, out);
    case OpKind::kBatchNormGrad:
      return NormGradMagnitudes(desc, in);
    default:
      return SumsOfMagnitudes(desc, in, step);
  }
}

double Factor(const NodeDesc& desc) {
  switch (desc.op) {
    case OpKind::kBatchNorm:
    case OpKind::kBatchNormInference:
      return Gamma(8);
    case OpKind::kBatchNormGrad:
      return Gamma(16);
    case OpKind::kMaxPool2d:
      return 0;
    default:
      return Gamma(LinearTerms(desc) + 2);
  }
}

double HalfSmallest(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-25;
    case DType::kBF16:
      return 0x1p-134;
    case DType::kF8E4M3:
      return 0x1p-10;
    case DType::kF8E5M2:
      return 0x1p-17;
    default:
      return 0x1p-150;
  }
}

// Half the distance between two values of `dtype` next to each other, at `value` or among the smallest.
double HalfUlp(double value, DType dtype) {
  if (!IsFloat(dtype)) return 0;
  return std::max(std::fabs(value) * UnitRoundoff(dtype), HalfSmallest(dtype));
}

// Before the last rounding.
Tensors ComputedError(const NodeDesc& desc, const Tensors& in, const Tensors& out, const runtime::StepState& step) {
  if (const OpRow* row = FindOpRow(desc.op)) {
    if (row->error) return row->error(desc, in, out);
    Tensors exact;
    for (const RefTensor& t : out) exact.push_back(Filled(t.shape));
    return exact;
  }
  Tensors errors = OpMagnitudes(desc, in, out, step);
  const double factor = Factor(desc);
  for (RefTensor& error : errors) {
    for (double& v : error.data) v = factor == 0 ? 0 : factor * v;
  }
  return errors;
}

}  // namespace

Tensors ErrorBound(const NodeDesc& desc, const Tensors& inputs, const Tensors& outputs,
                   const runtime::StepState& step) {
  Tensors bounds = ComputedError(desc, inputs, outputs, step);
  const std::vector<DType> dtypes = ResultDTypes(desc);
  for (size_t i = 0; i < bounds.size(); ++i) {
    for (int64_t e = 0; e < bounds[i].size(); ++e) {
      const double computed = bounds[i].data[e];
      bounds[i].data[e] = computed + HalfUlp(std::fabs(outputs[i].data[e]) + computed, dtypes[i]);
    }
  }
  return bounds;
}

namespace {

// Of those that NonFinite() names.
constexpr int64_t kNamed = 8;

bool Agrees(double a, double e, double bound, DType dtype) {
  if (std::isnan(e) ? std::isnan(a) : a == e) return true;
  if (std::fabs(a - e) <= bound) return true;
  const bool may_overflow = IsFloat(dtype) && std::fabs(e) + bound > MaxFinite(dtype);
  return may_overflow && std::isinf(a) && std::signbit(a) == std::signbit(e);
}

// "; 3 of 24 elements are not finite where they should be: 0, 5, 7", or nothing.
std::string NonFinite(const RefTensor& actual, const RefTensor& expected, const RefTensor& bound, DType dtype) {
  int64_t count = 0;
  std::string named;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double a = actual.data[i], e = expected.data[i];
    if (std::isfinite(a) || !std::isfinite(e) || Agrees(a, e, bound.data[i], dtype)) continue;
    if (count++ < kNamed) absl::StrAppend(&named, named.empty() ? "" : ", ", i);
  }
  if (count == 0) return "";
  return absl::StrCat("; ", count, " of ", actual.size(), " elements are not finite where they should be: ", named,
                      count > kNamed ? ", ..." : "");
}

}  // namespace

std::string Compare(const RefTensor& actual, const RefTensor& expected, const RefTensor& bound, DType dtype) {
  if (actual.shape != expected.shape) {
    return absl::StrCat("shape ", ShapeString(actual.shape), ", expected ", ShapeString(expected.shape));
  }
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double a = actual.data[i], e = expected.data[i];
    if (Agrees(a, e, bound.data[i], dtype)) continue;
    return absl::StrFormat("element %d of %s: %.9g, expected %.9g, off by %.3g where %.3g is allowed%s", i,
                           ShapeString(actual.shape), a, e, std::fabs(a - e), bound.data[i],
                           NonFinite(actual, expected, bound, dtype));
  }
  return "";
}

}  // namespace ampd::testing
