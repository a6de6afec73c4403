// Batch normalisation (Ioffe and Szegedy 2015).
#include <cmath>

#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using runtime::NodeDesc;

// y = (x - mean) / sqrt(var + eps) * scale + bias, channels last.
RefTensor Normalized(const RefTensor& x, const RefTensor& mean, const RefTensor& var, const RefTensor& scale,
                     const RefTensor& bias, double epsilon) {
  RefTensor y = Filled(x.shape);
  const int64_t channels = x.shape.back();
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t c = i % channels;
    y.data[i] = (x.data[i] - mean.data[c]) / std::sqrt(var.data[c] + epsilon) * scale.data[c] + bias.data[c];
  }
  return y;
}

}  // namespace

RefTensors BatchNormReference(const NodeDesc& desc, const RefTensors& in) {
  const RefTensor& x = in[0];
  const int64_t channels = x.shape.back();
  const double count = static_cast<double>(x.size() / channels);
  RefTensor mean = Filled(Shape{channels});
  RefTensor var = Filled(Shape{channels});
  for (int64_t i = 0; i < x.size(); ++i) mean.data[i % channels] += x.data[i] / count;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double d = x.data[i] - mean.data[i % channels];
    var.data[i % channels] += d * d / count;
  }
  return {Normalized(x, mean, var, in[1], in[2], desc.attributes.Double("epsilon")), mean, var};
}

// dy through the relu behind the norm, whose gate is what its f32 arithmetic says.
RefTensor BatchNormGated(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dy = in[0];
  if (in.size() == 5) return dy;
  for (int64_t i = 0; i < dy.size(); ++i) {
    const int64_t c = i % dy.shape.back();
    const auto number = [&](size_t input) { return static_cast<float>(in[input].data[c]); };
    const volatile float scaled = (static_cast<float>(in[1].data[i]) - number(3)) * number(5);
    const float norm = scaled + number(6);
    if (RoundToDType(static_cast<double>(norm), desc.inputs[1].dtype) <= 0) dy.data[i] = 0;
  }
  return dy;
}

RefTensors BatchNormGradReference(const NodeDesc& desc, const RefTensors& in) {
  const auto& [x, scale, mean, var] = std::tie(in[1], in[2], in[3], in[4]);
  const RefTensor dy = BatchNormGated(desc, in);
  const int64_t channels = x.shape.back();
  const double count = static_cast<double>(x.size() / channels);
  RefTensor dx = Filled(x.shape);
  RefTensor dscale = Filled(Shape{channels});
  RefTensor dbias = Filled(Shape{channels});
  const auto normalized = [&](int64_t i) {
    const int64_t c = i % channels;
    return (x.data[i] - mean.data[c]) / std::sqrt(var.data[c] + desc.attributes.Double("epsilon"));
  };
  for (int64_t i = 0; i < x.size(); ++i) {
    dscale.data[i % channels] += dy.data[i] * normalized(i);
    dbias.data[i % channels] += dy.data[i];
  }
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t c = i % channels;
    const double inner = dy.data[i] - dbias.data[c] / count - normalized(i) * dscale.data[c] / count;
    dx.data[i] = scale.data[c] / std::sqrt(var.data[c] + desc.attributes.Double("epsilon")) * inner;
  }
  return {dx, dscale, dbias};
}

RefTensor BatchNormInferenceReference(const NodeDesc& desc, const RefTensors& in) {
  return Normalized(in[0], in[3], in[4], in[1], in[2], desc.attributes.Double("epsilon"));
}

RefTensors BatchNormUpdateReference(const NodeDesc& desc, const RefTensors& in) {
  const double momentum = desc.attributes.Double("momentum");
  const double count = static_cast<double>(desc.attributes.Int("count"));
  RefTensor mean = in[2], var = in[3], batches = in[4];
  for (int64_t c = 0; c < mean.size(); ++c) {
    const double unbiased = count > 1 ? in[1].data[c] * count / (count - 1) : in[1].data[c];
    const double with_bias = in.size() > 5 ? in[0].data[c] + in[5].data[c] : in[0].data[c];
    mean.data[c] = (1 - momentum) * mean.data[c] + momentum * with_bias;
    var.data[c] = (1 - momentum) * var.data[c] + momentum * unbiased;
  }
  batches.data[0] += 1;
  return {mean, var, batches};
}

}  // namespace ampd::testing
