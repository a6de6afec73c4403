#include "tests/support/reference.h"

#include <cmath>

#include "engine/core/rng.h"
#include "tests/support/op_rows.h"
#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

template <typename F>
RefTensor Map(const RefTensor& a, const RefTensor& b, F f) {
  RefTensor y = Filled(a.shape);
  for (int64_t i = 0; i < a.size(); ++i) y.data[i] = f(a.data[i], b.data[i]);
  return y;
}

RefTensor Reshaped(const NodeDesc& desc, RefTensor x) {
  x.shape = desc.outputs[0].shape;
  return x;
}

RefTensor Dropout(const NodeDesc& desc, const RefTensor& x, const StepState& step) {
  const double rate = desc.attributes.Double("rate");
  const auto stream = static_cast<uint32_t>(desc.attributes.Int("stream"));
  const int64_t per_sample = x.size() / x.shape[0];
  RefTensor y = Filled(x.shape);
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto sample = static_cast<uint32_t>(step.first_sample + i / per_sample);
    const auto element = static_cast<uint64_t>(i % per_sample);
    const PhiloxBlock words = Philox4x32(RngCounter(step.attempted_step, sample, element, stream), step.seed);
    const bool kept = static_cast<double>(UniformFloat(words[element % 4])) >= rate;
    y.data[i] = kept ? x.data[i] / (1 - rate) : 0;
  }
  return y;
}

// Where the matrix of `shape` for batch element `y_batch` of `y` begins: axes of extent 1 do not move.
int64_t MatrixAt(const Shape& shape, const Shape& y, int64_t y_batch) {
  int64_t at = 0, stride = shape[shape.size() - 1] * shape[shape.size() - 2];
  for (size_t i = 3; i <= y.size(); ++i) {
    const int64_t index = y_batch % y[y.size() - i];
    y_batch /= y[y.size() - i];
    if (i > shape.size()) continue;
    const int64_t extent = shape[shape.size() - i];
    at += extent == 1 ? 0 : index * stride;
    stride *= extent;
  }
  return at;
}

RefTensor Matmul(const NodeDesc& desc, const RefTensors& in) {
  const bool ta = desc.attributes.Bool("transpose_a"), tb = desc.attributes.Bool("transpose_b");
  RefTensor y = Filled(desc.outputs[0].shape);
  const Shape &a = in[0].shape, &b = in[1].shape;
  const int64_t rows = y.shape[y.shape.size() - 2], columns = y.shape.back(), inner = a[a.size() - (ta ? 2 : 1)];
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t batch = i / (rows * columns), m = i / columns % rows, n = i % columns;
    const double* left = in[0].data.data() + MatrixAt(a, y.shape, batch);
    const double* right = in[1].data.data() + MatrixAt(b, y.shape, batch);
    for (int64_t k = 0; k < inner; ++k) {
      y.data[i] += left[ta ? k * a.back() + m : m * a.back() + k] * right[tb ? n * b.back() + k : k * b.back() + n];
    }
    if (in.size() > 2) y.data[i] /= in[2].data[0] * in[3].data[0];
  }
  return y;
}

RefTensor BiasAdd(const RefTensors& in) {
  RefTensor y = in[0];
  for (int64_t i = 0; i < y.size(); ++i) y.data[i] += in[1].data[i % in[1].size()];
  return y;
}

RefTensor BiasAddGrad(const RefTensors& in) {
  RefTensor db = Filled(Shape{in[0].shape.back()});
  for (int64_t i = 0; i < in[0].size(); ++i) db.data[i % db.size()] += in[0].data[i];
  return db;
}

}  // namespace

RefTensors ReferenceOp(const NodeDesc& desc, const RefTensors& in, const StepState& step) {
  if (const OpRow* row = FindOpRow(desc.op)) return row->reference(desc, in, step);
  switch (desc.op) {
    case OpKind::kReshape:
      return {Reshaped(desc, in[0])};
    case OpKind::kDropout:
      return {Dropout(desc, in[0], step)};
    case OpKind::kMatmul:
      return {Matmul(desc, in)};
    case OpKind::kBiasAdd:
      return {BiasAdd(in)};
    case OpKind::kBiasAddGrad:
      return {BiasAddGrad(in)};
    case OpKind::kConv2d:
      return {Conv2dReference(desc, in)};
    case OpKind::kConv2dGradInput:
      return {Conv2dGradInputReference(desc, in)};
    case OpKind::kConv2dGradFilter:
      return {Conv2dGradFilterReference(desc, in)};
    case OpKind::kMaxPool2d:
      return {MaxPoolReference(desc, in)};
    case OpKind::kMaxPool2dGrad:
      return {MaxPoolGradReference(desc, in)};
    case OpKind::kAvgPool2d:
      return {AvgPoolReference(desc, in)};
    case OpKind::kAvgPool2dGrad:
      return {AvgPoolGradReference(desc, in)};
    case OpKind::kGlobalAvgPool:
      return {GlobalAvgPoolReference(in)};
    case OpKind::kGlobalAvgPoolGrad:
      return {GlobalAvgPoolGradReference(desc, in)};
    case OpKind::kBatchNorm:
      return BatchNormReference(desc, in);
    case OpKind::kBatchNormGrad:
      return BatchNormGradReference(desc, in);
    case OpKind::kBatchNormInference:
      return {BatchNormInferenceReference(desc, in)};
    case OpKind::kBatchNormUpdate:
      return BatchNormUpdateReference(desc, in);
    case OpKind::kAccumulateGrad:
      if (desc.attributes.Bool("overwrite")) return {in[0]};
      return {Map(in[0], in[1], [](double g, double sum) { return g + sum; })};
    default:
      return {};
  }
}

std::vector<DType> ResultDTypes(const NodeDesc& desc) {
  std::vector<DType> dtypes;
  for (const ir::TensorType& type : desc.outputs) dtypes.push_back(type.dtype);
  if (desc.op == OpKind::kBatchNormUpdate) dtypes = {DType::kF32, DType::kF32, DType::kI64};
  if (desc.op == OpKind::kAmaxUpdate) dtypes = {DType::kF32, DType::kI64, DType::kF32};
  if (desc.op == OpKind::kAccumulateGrad) dtypes = {DType::kF32};
  return dtypes;
}

}  // namespace ampd::testing
