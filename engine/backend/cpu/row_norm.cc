// layer_norm and rms_norm: one pass a row, while it is in the cache.
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/lane_sums.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Centring first keeps y accurate where the mean is large against the deviation.
AMPD_CPU_CLONES void NormalizeLoop(const float* __restrict x, float mean, float inverse, const float* __restrict scale,
                                   const float* __restrict bias, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
}

AMPD_CPU_CLONES void VectorGradLoop(const float* __restrict dy, const float* __restrict x, float mean, float inverse,
                                    int64_t n, double* __restrict dscale, double* __restrict dbias) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(dy[i]);
    dscale[i] += g * static_cast<double>((x[i] - mean) * inverse);
    dbias[i] += g;
  }
}

// Sums of dy * scale, and of that times (x - mean).
AMPD_CPU_CLONES void GradSums(const float* __restrict dy, const float* __restrict x, const float* __restrict scale,
                              float mean, int64_t n, double* sum, double* product) {
  LaneSum sums, products;
  ForEachLane(n, [&](int64_t i, int lane) {
    const double g = static_cast<double>(dy[i]) * static_cast<double>(scale[i]);
    sums.lanes[lane] += g;
    products.lanes[lane] += g * (static_cast<double>(x[i]) - static_cast<double>(mean));
  });
  *sum = sums.Total();
  *product = products.Total();
}

AMPD_CPU_CLONES void GradInputLoop(const float* __restrict dy, const float* __restrict x, const float* __restrict scale,
                                   float mean, float inverse, float g_mean, float slope, int64_t n,
                                   float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = inverse * (dy[i] * scale[i] - g_mean - (x[i] - mean) * slope);
}

AMPD_CPU_CLONES double MeanOf(const float* x, int64_t n) {
  LaneSum sum;
  ForEachLane(n, [&](int64_t i, int lane) { sum.lanes[lane] += static_cast<double>(x[i]); });
  return sum.Total() / static_cast<double>(n);
}

AMPD_CPU_CLONES double MeanSquareOf(const float* x, double centre, int64_t n) {
  LaneSum sum;
  ForEachLane(n, [&](int64_t i, int lane) {
    const double d = static_cast<double>(x[i]) - centre;
    sum.lanes[lane] += d * d;
  });
  return sum.Total() / static_cast<double>(n);
}

AMPD_CPU_CLONES void AddLoop(const float* __restrict added, int64_t n, float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] += added[i];
}

struct RowNorm {
  int64_t rows, row;
  int parts;
  bool centred;  // layer_norm; else rms_norm, whose mean is 0
  double epsilon;

  RowNorm(const NodeDesc& desc, const Shape& x, bool c) : centred(c), epsilon(desc.attributes.Double("epsilon")) {
    row = NumElements(absl::MakeConstSpan(x).subspan(static_cast<size_t>(desc.attributes.Int("axis"))));
    rows = NumElements(x) / row;
    parts = static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, rows * row, kMinElementsPerThread), rows));
  }
};

std::unique_ptr<runtime::Kernel> PrepareForward(const NodeDesc& desc, bool centred) {
  const RowNorm norm(desc, desc.inputs[0].shape, centred);
  const size_t operands = desc.inputs.size();
  const int64_t row_bytes = AlignUp(norm.row * 4);
  WorkspaceLayout workspace;
  const int64_t ones_at = workspace.Add(row_bytes), zeros_at = workspace.Add(row_bytes);
  const int64_t buffers_at = workspace.Add(norm.parts * 2 * row_bytes);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    float* ones = WorkspaceAt<float>(args, ones_at);
    float* zeros = WorkspaceAt<float>(args, zeros_at);
    std::fill(ones, ones + norm.row, 1.0f);
    std::fill(zeros, zeros + norm.row, 0.0f);
    const float* scale = operands > 1 ? args.inputs[1].as<float>() : ones;
    const float* bias = operands > 2 ? args.inputs[2].as<float>() : zeros;
    ParallelRange(norm.parts, norm.rows, 1, [&](int part, int64_t begin, int64_t end) {
      float* in = WorkspaceAt<float>(args, buffers_at + part * 2 * row_bytes);
      float* out = WorkspaceAt<float>(args, buffers_at + (part * 2 + 1) * row_bytes);
      for (int64_t r = begin; r < end; ++r) {
        const float* x = Load(args.inputs[0], r * norm.row, norm.row, in);
        const double centre = norm.centred ? MeanOf(x, norm.row) : 0;
        const auto mean = static_cast<float>(centre);
        const auto inverse = static_cast<float>(1.0 / std::sqrt(MeanSquareOf(x, centre, norm.row) + norm.epsilon));
        if (norm.centred) args.outputs[1].as<float>()[r] = mean;
        args.outputs[norm.centred ? 2 : 1].as<float>()[r] = inverse;
        float* y = Target(args.outputs[0], r * norm.row, out);
        NormalizeLoop(x, mean, inverse, scale, bias, norm.row, y);
        Store(args.outputs[0], r * norm.row, norm.row, y);
      }
    });
  });
}

// The gradient's part of the workspace.
struct GradLayout {
  int64_t ones, buffers, sums, row_bytes, sum_bytes, total;

  explicit GradLayout(const RowNorm& norm) : row_bytes(AlignUp(norm.row * 4)), sum_bytes(AlignUp(norm.row * 8)) {
    WorkspaceLayout layout;
    ones = layout.Add(row_bytes);
    buffers = layout.Add(norm.parts * 4 * row_bytes);
    sums = layout.Add(norm.parts * 2 * sum_bytes);
    total = layout.bytes();
  }
  float* Buffer(const KernelArgs& args, int part, int i) const {
    return WorkspaceAt<float>(args, buffers + (part * 4 + i) * row_bytes);
  }
  double* Sum(const KernelArgs& args, int part, int i) const {
    return WorkspaceAt<double>(args, sums + (part * 2 + i) * sum_bytes);
  }
};

void GradRows(const RowNorm& norm, const GradLayout& at, const float* scale, const KernelArgs& args, int part,
              int64_t begin, int64_t end) {
  const int64_t n = norm.row;
  const size_t added_input = norm.centred ? 5 : 4;
  const TensorView* added = args.inputs.size() > added_input ? &args.inputs[added_input] : nullptr;
  double* dscale = at.Sum(args, part, 0);
  double* dbias = at.Sum(args, part, 1);
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = Load(args.inputs[0], r * n, n, at.Buffer(args, part, 0));
    const float* x = Load(args.inputs[1], r * n, n, at.Buffer(args, part, 1));
    const float mean = norm.centred ? args.inputs[2].as<float>()[r] : 0.0f;
    const float inverse = args.inputs[norm.centred ? 3 : 2].as<float>()[r];
    if (args.outputs.size() > 1) VectorGradLoop(dy, x, mean, inverse, n, dscale, dbias);
    double sum = 0, product = 0;
    GradSums(dy, x, scale, mean, n, &sum, &product);
    const double inverse_squared = static_cast<double>(inverse) * static_cast<double>(inverse);
    const auto g_mean = static_cast<float>(norm.centred ? sum / static_cast<double>(n) : 0);
    const auto slope = static_cast<float>(product * inverse_squared / static_cast<double>(n));
    float* dx = Target(args.outputs[0], r * n, at.Buffer(args, part, 2));
    GradInputLoop(dy, x, scale, mean, inverse, g_mean, slope, n, dx);
    if (added != nullptr) AddLoop(Load(*added, r * n, n, at.Buffer(args, part, 3)), n, dx);
    Store(args.outputs[0], r * n, n, dx);
  }
}

std::unique_ptr<runtime::Kernel> PrepareGrad(const NodeDesc& desc, bool centred) {
  const RowNorm norm(desc, desc.inputs[1].shape, centred);
  const GradLayout at(norm);
  const size_t scale_input = centred ? 4 : 3;
  const bool has_scale = desc.inputs.size() > scale_input;
  return MakeKernel(at.total, [=](const KernelArgs& args) {
    float* ones = WorkspaceAt<float>(args, at.ones);
    std::fill(ones, ones + norm.row, 1.0f);
    const float* scale = has_scale ? args.inputs[scale_input].as<float>() : ones;
    for (int part = 0; part < norm.parts; ++part) {
      for (int i : {0, 1}) std::fill_n(at.Sum(args, part, i), norm.row, 0.0);
    }
    ParallelRange(norm.parts, norm.rows, 1,
                  [&](int part, int64_t begin, int64_t end) { GradRows(norm, at, scale, args, part, begin, end); });
    for (size_t v = 1; v < args.outputs.size(); ++v) {
      for (int64_t i = 0; i < norm.row; ++i) {
        double sum = 0;
        for (int part = 0; part < norm.parts; ++part) sum += at.Sum(args, part, static_cast<int>(v) - 1)[i];
        args.outputs[v].as<float>()[i] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace

void RegisterRowNorm(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  const auto layer = [](const NodeDesc& d) { return PrepareForward(d, true); };
  const auto layer_grad = [](const NodeDesc& d) { return PrepareGrad(d, true); };
  const auto rms = [](const NodeDesc& d) { return PrepareForward(d, false); };
  const auto rms_grad = [](const NodeDesc& d) { return PrepareGrad(d, false); };
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kLayerNorm, {t}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNorm, {t, f}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNorm, {t, f, f}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f}, {t}, layer_grad);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f, f}, {t, f, f}, layer_grad);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f, f, t}, {t, f, f}, layer_grad);
    table->Add(ir::OpKind::kRmsNorm, {t}, {t, f}, rms);
    table->Add(ir::OpKind::kRmsNorm, {t, f}, {t, f}, rms);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f}, {t}, rms_grad);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f, f}, {t, f}, rms_grad);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f, f, t}, {t, f}, rms_grad);
  }
}

}  // namespace ampd::cpu
