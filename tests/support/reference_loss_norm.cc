// Batch normalisation (Ioffe and Szegedy 2015) and the losses.
#include <cmath>
#include <limits>

#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using runtime::NodeDesc;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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

bool AllFinite(const double* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(row[i])) return false;
  }
  return true;
}

std::vector<double> Softmax(const double* z, int64_t n) {
  if (!AllFinite(z, n)) return std::vector<double>(n, kNaN);
  double largest = z[0];
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, z[i]);
  std::vector<double> softmax(n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += softmax[i] = std::exp(z[i] - largest);
  for (double& s : softmax) s /= sum;
  return softmax;
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

RefTensors BatchNormGradReference(const NodeDesc& desc, const RefTensors& in) {
  const auto& [dy, x, scale, mean, var] = std::tie(in[0], in[1], in[2], in[3], in[4]);
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
    mean.data[c] = (1 - momentum) * mean.data[c] + momentum * in[0].data[c];
    var.data[c] = (1 - momentum) * var.data[c] + momentum * unbiased;
  }
  batches.data[0] += 1;
  return {mean, var, batches};
}

RefTensor CrossEntropyReference(const RefTensors& in) {
  const int64_t classes = in[0].shape[1];
  RefTensor losses = Filled(Shape{in[0].shape[0]});
  for (int64_t n = 0; n < losses.size(); ++n) {
    const double* z = in[0].data.data() + n * classes;
    const auto label = static_cast<int64_t>(in[1].data[n]);
    if (label < 0 || label >= classes) continue;
    double largest = z[0], sum = 0;
    for (int64_t c = 0; c < classes; ++c) largest = std::max(largest, z[c]);
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(z[c] - largest);
    losses.data[n] = AllFinite(z, classes) ? std::log(sum) - (z[label] - largest) : kNaN;
  }
  return losses;
}

RefTensor CrossEntropyGradReference(const RefTensors& in) {
  const int64_t classes = in[1].shape[1];
  RefTensor dz = Filled(in[1].shape);
  for (int64_t n = 0; n < dz.shape[0]; ++n) {
    const auto label = static_cast<int64_t>(in[2].data[n]);
    if (label < 0 || label >= classes) continue;
    const std::vector<double> softmax = Softmax(in[1].data.data() + n * classes, classes);
    for (int64_t c = 0; c < classes; ++c) {
      dz.data[n * classes + c] = in[0].data[n] * (softmax[c] - (c == label ? 1 : 0));
    }
  }
  return dz;
}

RefTensor SquaredErrorReference(const RefTensors& in) {
  const int64_t features = in[0].shape[1];
  RefTensor losses = Filled(Shape{in[0].shape[0]});
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double d = in[0].data[i] - in[1].data[i];
    losses.data[i / features] += d * d / static_cast<double>(features);
  }
  return losses;
}

RefTensor SquaredErrorGradReference(const RefTensors& in) {
  const int64_t features = in[1].shape[1];
  RefTensor dp = Filled(in[1].shape);
  for (int64_t i = 0; i < dp.size(); ++i) {
    dp.data[i] = in[0].data[i / features] * 2 * (in[1].data[i] - in[2].data[i]) / static_cast<double>(features);
  }
  return dp;
}

RefTensor ArgmaxEqualReference(const RefTensors& in) {
  const int64_t classes = in[0].shape[1];
  RefTensor hit = Filled(Shape{in[0].shape[0]});
  for (int64_t n = 0; n < hit.size(); ++n) {
    int64_t best = 0;
    bool has_nan = false;
    for (int64_t c = 0; c < classes; ++c) {
      const double z = in[0].data[n * classes + c];
      has_nan |= std::isnan(z);
      if (z > in[0].data[n * classes + best]) best = c;
    }
    hit.data[n] = !has_nan && static_cast<double>(best) == in[1].data[n] ? 1 : 0;
  }
  return hit;
}

}  // namespace ampd::testing
