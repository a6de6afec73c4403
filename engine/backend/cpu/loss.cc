#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Largest of a row, or NaN where any element is not finite.
float FiniteMax(const float* row, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(row[i])) return kNaN;
    largest = std::max(largest, row[i]);
  }
  return largest;
}

// Rows at which another thread pays, `cost` being elements a row times cheap operations an element.
int RowParts(int threads, int64_t rows, int64_t cost) {
  return static_cast<int>(std::min<int64_t>(PartsFor(threads, rows * cost, kMinElementsPerThread), rows));
}

void CrossEntropy(const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t classes = args.inputs[0].shape[1];
  for (int64_t n = begin; n < end; ++n) {
    const float* z = args.inputs[0].as<float>() + n * classes;
    const int64_t label = args.inputs[1].as<int32_t>()[n];
    float* loss = args.outputs[0].as<float>() + n;
    if (label < 0 || label >= classes) {
      *loss = 0;
      continue;
    }
    const float largest = FiniteMax(z, classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += static_cast<double>(std::exp(z[c] - largest));
    *loss = static_cast<float>(std::log(sum) - (static_cast<double>(z[label]) - static_cast<double>(largest)));
  }
}

void CrossEntropyGrad(const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t classes = args.inputs[1].shape[1];
  for (int64_t n = begin; n < end; ++n) {
    const float* z = args.inputs[1].as<float>() + n * classes;
    const int64_t label = args.inputs[2].as<int32_t>()[n];
    float* dz = args.outputs[0].as<float>() + n * classes;
    if (label < 0 || label >= classes) {
      std::fill(dz, dz + classes, 0.0f);
      continue;
    }
    const float largest = FiniteMax(z, classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      dz[c] = std::exp(z[c] - largest);
      sum += static_cast<double>(dz[c]);
    }
    const double dloss = args.inputs[0].as<float>()[n];
    for (int64_t c = 0; c < classes; ++c) {
      const double softmax = static_cast<double>(dz[c]) / sum;
      dz[c] = static_cast<float>(dloss * (c == label ? softmax - 1 : softmax));
    }
  }
}

void SquaredError(const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t features = args.inputs[0].shape[1];
  for (int64_t n = begin; n < end; ++n) {
    const float* p = args.inputs[0].as<float>() + n * features;
    const float* t = args.inputs[1].as<float>() + n * features;
    double sum = 0;
    for (int64_t f = 0; f < features; ++f) {
      const double d = static_cast<double>(p[f]) - static_cast<double>(t[f]);
      sum += d * d;
    }
    args.outputs[0].as<float>()[n] = static_cast<float>(sum / static_cast<double>(features));
  }
}

AMPD_CPU_CLONES void SquaredErrorGradLoop(const float* __restrict p, const float* __restrict t, int64_t n,
                                          double factor, float* __restrict dp) {
  for (int64_t i = 0; i < n; ++i) {
    dp[i] = static_cast<float>(factor * (static_cast<double>(p[i]) - static_cast<double>(t[i])));
  }
}

void SquaredErrorGrad(const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t features = args.inputs[1].shape[1];
  for (int64_t n = begin; n < end; ++n) {
    const double factor = 2.0 * static_cast<double>(args.inputs[0].as<float>()[n]) / static_cast<double>(features);
    const int64_t first = n * features;
    SquaredErrorGradLoop(args.inputs[1].as<float>() + first, args.inputs[2].as<float>() + first, features, factor,
                         args.outputs[0].as<float>() + first);
  }
}

void ArgmaxEqual(const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t classes = args.inputs[0].shape[1];
  for (int64_t n = begin; n < end; ++n) {
    const float* z = args.inputs[0].as<float>() + n * classes;
    const bool has_nan = std::any_of(z, z + classes, [](float v) { return std::isnan(v); });
    const int64_t largest = std::max_element(z, z + classes) - z;
    args.outputs[0].as<float>()[n] = !has_nan && largest == args.inputs[1].as<int32_t>()[n] ? 1.0f : 0.0f;
  }
}

// `logits` is the input of two dimensions that says how large the work is.
runtime::PrepareKernel ByRow(void (*rows)(const KernelArgs&, int64_t begin, int64_t end), int logits, int cost) {
  return [=](const NodeDesc& desc) {
    const Shape& shape = desc.inputs[logits].shape;
    const int parts = RowParts(desc.threads, shape[0], shape[1] * cost);
    return MakeKernel(0, [=, n = shape[0]](const KernelArgs& args) {
      ParallelRange(parts, n, 1, [&](int, int64_t begin, int64_t end) { rows(args, begin, end); });
    });
  };
}

void ReduceMean(const KernelArgs& args) {
  const int64_t n = args.inputs[0].size();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(args.inputs[0].as<float>()[i]);
  *args.outputs[0].as<float>() = static_cast<float>(sum / static_cast<double>(n));
}

void ReduceMeanGrad(const KernelArgs& args) {
  const int64_t n = args.outputs[0].size();
  const float share = *args.inputs[0].as<float>() / static_cast<float>(n);
  std::fill_n(args.outputs[0].as<float>(), n, share);
}

}  // namespace

void RegisterLosses(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kSoftmaxCrossEntropy, {f, i}, {f}, ByRow(CrossEntropy, 0, 16));
  table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, f, i}, {f}, ByRow(CrossEntropyGrad, 1, 16));
  table->Add(ir::OpKind::kSquaredError, {f, f}, {f}, ByRow(SquaredError, 0, 1));
  table->Add(ir::OpKind::kSquaredErrorGrad, {f, f, f}, {f}, ByRow(SquaredErrorGrad, 1, 1));
  table->Add(ir::OpKind::kArgmaxEqual, {f, i}, {f}, ByRow(ArgmaxEqual, 0, 2));
  table->Add(ir::OpKind::kReduceMean, {f}, {f}, [](const NodeDesc&) { return MakeKernel(0, ReduceMean); });
  table->Add(ir::OpKind::kReduceMeanGrad, {f}, {f}, [](const NodeDesc&) { return MakeKernel(0, ReduceMeanGrad); });
}

}  // namespace ampd::cpu
