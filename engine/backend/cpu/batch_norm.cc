#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/backend/cpu/channel_loops.h"
#include "engine/backend/cpu/channels.h"
#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Sixteen channels at a time, so that the sums over the rows of a piece stay in registers; GCC does not find that
// itself.
using Floats = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));
constexpr int64_t kWide = 16;

bool FitsWide(int64_t channels, int64_t n) { return channels % kWide == 0 && n % channels == 0; }

// As MomentsLoop over `rows` rows of `channels`, which kWide divides.
AMPD_CPU_CLONES void MomentsRows(const float* __restrict x, const float* __restrict shift, int64_t rows,
                                 int64_t channels, double* __restrict sum, double* __restrict square) {
  for (int64_t c = 0; c < channels; c += kWide) {
    Floats f;
    Doubles shifts[2], sums[2], squares[2];
    std::memcpy(sums, sum + c, sizeof(sums));
    std::memcpy(squares, square + c, sizeof(squares));
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&f, shift + c + 8 * i, sizeof(f));
      shifts[i] = __builtin_convertvector(f, Doubles);
    }
    for (const float *row = x + c, *end = row + rows * channels; row < end; row += channels) {
      for (int i = 0; i < 2; ++i) {
        std::memcpy(&f, row + 8 * i, sizeof(f));
        const Doubles d = __builtin_convertvector(f, Doubles) - shifts[i];
        sums[i] += d;
        squares[i] += d * d;
      }
    }
    std::memcpy(sum + c, sums, sizeof(sums));
    std::memcpy(square + c, squares, sizeof(squares));
  }
}

// As GradSumsLoop.
AMPD_CPU_CLONES void GradSumsRows(const float* __restrict dy, const float* __restrict x, const float* __restrict mean,
                                  int64_t rows, int64_t channels, double* __restrict sum, double* __restrict product) {
  for (int64_t c = 0; c < channels; c += kWide) {
    Floats f, g;
    Doubles means[2], sums[2], products[2];
    std::memcpy(sums, sum + c, sizeof(sums));
    std::memcpy(products, product + c, sizeof(products));
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&f, mean + c + 8 * i, sizeof(f));
      means[i] = __builtin_convertvector(f, Doubles);
    }
    for (int64_t at = c; at < rows * channels; at += channels) {
      for (int i = 0; i < 2; ++i) {
        std::memcpy(&f, x + at + 8 * i, sizeof(f));
        std::memcpy(&g, dy + at + 8 * i, sizeof(g));
        const Doubles slope = __builtin_convertvector(g, Doubles);
        sums[i] += slope;
        products[i] += slope * (__builtin_convertvector(f, Doubles) - means[i]);
      }
    }
    std::memcpy(sum + c, sums, sizeof(sums));
    std::memcpy(product + c, products, sizeof(products));
  }
}

AMPD_CPU_CLONES void GradInputLoop(const float* __restrict dy, const float* __restrict x, const float* __restrict mean,
                                   const float* __restrict factor, const float* __restrict dy_mean,
                                   const float* __restrict slope, int64_t n, float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = factor[i] * (dy[i] - dy_mean[i] - (x[i] - mean[i]) * slope[i]);
}

struct Sums {
  ChannelLoop loop;
  int64_t partial_at = 0;  // [part][2][period] doubles
  int64_t first_at = 0;    // [C] doubles each
  int64_t second_at = 0;

  Sums(const ChannelLoop& l, WorkspaceLayout* workspace) : loop(l) {
    partial_at = workspace->Add(loop.parts * 2 * loop.period * sizeof(double));
    first_at = workspace->Add(loop.channels * sizeof(double));
    second_at = workspace->Add(loop.channels * sizeof(double));
  }

  void Clear(const KernelArgs& args) const {
    double* partial = WorkspaceAt<double>(args, partial_at);
    std::fill(partial, partial + loop.parts * 2 * loop.period, 0.0);
  }
  double* First(const KernelArgs& args, int part) const {
    return WorkspaceAt<double>(args, partial_at) + part * 2 * loop.period;
  }
  double* Second(const KernelArgs& args, int part) const { return First(args, part) + loop.period; }
  void Fold(const KernelArgs& args) const {
    loop.FoldSums(First(args, 0), 2 * loop.period, WorkspaceAt<double>(args, first_at));
    loop.FoldSums(Second(args, 0), 2 * loop.period, WorkspaceAt<double>(args, second_at));
  }
};

// Per-channel fp32 vectors, repeated over the period.
struct Vectors {
  ChannelLoop loop;
  int64_t at = 0;
  int64_t stride = 0;

  Vectors(const ChannelLoop& l, int count, WorkspaceLayout* workspace) : loop(l), stride(AlignUp(l.period * 4)) {
    at = workspace->Add(count * stride);
  }
  float* operator()(const KernelArgs& args, int index) const { return WorkspaceAt<float>(args, at + index * stride); }
  // Repeats the first C values, set before.
  void Spread(const KernelArgs& args, int index) const {
    float* v = (*this)(args, index);
    for (int64_t i = loop.channels; i < loop.period; i += loop.channels) std::copy(v, v + loop.channels, v + i);
  }
};

// y from x with the vectors 0 mean, 1 factor, 2 bias.
void Normalize(const ChannelLoop& loop, const Vectors& vectors, const KernelArgs& args) {
  for (int v = 0; v < 3; ++v) vectors.Spread(args, v);
  const float* mean = vectors(args, 0);
  const float* factor = vectors(args, 1);
  const float* bias = vectors(args, 2);
  loop.ForEachPiece([&](int, int64_t first, int64_t n, int64_t offset) {
    alignas(64) float in[kBlock], out[kBlock];
    float* y = Target(args.outputs[0], first, out);
    NormalizeLoop(Load(args.inputs[0], first, n, in), mean + offset, factor + offset, bias + offset, n, y);
    Store(args.outputs[0], first, n, y);
  });
}

// The first row is a shift near enough to the mean; an infinite one would turn every difference into NaN.
void SetShift(const ChannelLoop& loop, const Vectors& vectors, const KernelArgs& args) {
  float* shift = vectors(args, 0);
  ToF32(args.inputs[0].dtype, args.inputs[0].data, loop.channels, shift);
  for (int64_t c = 0; c < loop.channels; ++c) {
    if (!std::isfinite(shift[c])) shift[c] = 0;
  }
  vectors.Spread(args, 0);
}

void Moments(const Sums& sums, const Vectors& vectors, const KernelArgs& args, float* mean, float* variance) {
  sums.Clear(args);
  const float* shift = vectors(args, 0);
  const int64_t channels = sums.loop.channels;
  sums.loop.ForEachPiece([&](int part, int64_t first, int64_t n, int64_t offset) {
    alignas(64) float in[kBlock];
    const float* x = Load(args.inputs[0], first, n, in);
    double *sum = sums.First(args, part) + offset, *square = sums.Second(args, part) + offset;
    if (FitsWide(channels, n)) return MomentsRows(x, shift, n / channels, channels, sum, square);
    MomentsLoop(x, shift + offset, n, sum, square);
  });
  sums.Fold(args);
  const double inverse_count = 1.0 / static_cast<double>(sums.loop.rows());
  for (int64_t c = 0; c < sums.loop.channels; ++c) {
    const double centred = WorkspaceAt<double>(args, sums.first_at)[c] * inverse_count;
    const double var = WorkspaceAt<double>(args, sums.second_at)[c] * inverse_count - centred * centred;
    mean[c] = static_cast<float>(static_cast<double>(shift[c]) + centred);
    variance[c] = static_cast<float>(var < 0 ? 0.0 : var);
  }
}

float Factor(float var, double epsilon, float scale) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(var) + epsilon) * static_cast<double>(scale));
}

void SetFactors(const Vectors& vectors, const KernelArgs& args, const float* mean, const float* var, double epsilon) {
  for (int64_t c = 0; c < vectors.loop.channels; ++c) {
    vectors(args, 0)[c] = mean[c];
    vectors(args, 1)[c] = Factor(var[c], epsilon, args.inputs[1].as<float>()[c]);
    vectors(args, 2)[c] = args.inputs[2].as<float>()[c];
  }
}

std::unique_ptr<runtime::Kernel> PrepareBatchNorm(const NodeDesc& desc) {
  WorkspaceLayout workspace;
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  const Sums sums(loop, &workspace);
  const Vectors vectors(loop, 3, &workspace);
  const double epsilon = desc.attributes.Double("epsilon");
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    SetShift(loop, vectors, args);
    Moments(sums, vectors, args, args.outputs[1].as<float>(), args.outputs[2].as<float>());
    SetFactors(vectors, args, args.outputs[1].as<float>(), args.outputs[2].as<float>(), epsilon);
    Normalize(loop, vectors, args);
  });
}

std::unique_ptr<runtime::Kernel> PrepareBatchNormStatistics(const NodeDesc& desc) {
  WorkspaceLayout workspace;
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  const Sums sums(loop, &workspace);
  const Vectors vectors(loop, 1, &workspace);
  const double epsilon = desc.attributes.Double("epsilon");
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    SetShift(loop, vectors, args);
    float* var = args.outputs[1].as<float>();
    Moments(sums, vectors, args, args.outputs[0].as<float>(), var);
    for (int64_t c = 0; c < loop.channels; ++c) {
      args.outputs[2].as<float>()[c] = Factor(var[c], epsilon, args.inputs[1].as<float>()[c]);
    }
  });
}

std::unique_ptr<runtime::Kernel> PrepareBatchNormInference(const NodeDesc& desc) {
  WorkspaceLayout workspace;
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  const Vectors vectors(loop, 3, &workspace);
  const double epsilon = desc.attributes.Double("epsilon");
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    SetFactors(vectors, args, args.inputs[3].as<float>(), args.inputs[4].as<float>(), epsilon);
    Normalize(loop, vectors, args);
  });
}

// Fills dscale and dbias and the vectors 1 factor, 2 mean of dy, 3 slope; 0 is the mean.
void SetGradVectors(const Sums& sums, const Vectors& vectors, const KernelArgs& args, double epsilon) {
  const double inverse_count = 1.0 / static_cast<double>(sums.loop.rows());
  for (int64_t c = 0; c < sums.loop.channels; ++c) {
    const double sum = WorkspaceAt<double>(args, sums.first_at)[c];
    const double product = WorkspaceAt<double>(args, sums.second_at)[c];
    const double inverse = 1.0 / std::sqrt(static_cast<double>(args.inputs[4].as<float>()[c]) + epsilon);
    args.outputs[1].as<float>()[c] = static_cast<float>(product * inverse);
    args.outputs[2].as<float>()[c] = static_cast<float>(sum);
    vectors(args, 1)[c] = static_cast<float>(inverse * static_cast<double>(args.inputs[2].as<float>()[c]));
    vectors(args, 2)[c] = static_cast<float>(sum * inverse_count);
    vectors(args, 3)[c] = static_cast<float>(product * inverse * inverse * inverse_count);
  }
  for (int v = 1; v < 4; ++v) vectors.Spread(args, v);
}

AMPD_CPU_CLONES void GateLoop(const float* __restrict norm, int64_t n, const float* dy, float* gated) {
  for (int64_t i = 0; i < n; ++i) gated[i] = norm[i] <= 0 ? 0.0f : dy[i];
}

// The gradient that comes to elements first..first+n-1, in f32, perhaps in `buffer`: with a gate, through the relu
// behind the norm, which is computed anew as the forward pass does, by the vectors 4 factor and 5 bias.
const float* Incoming(const Vectors& vectors, const KernelArgs& args, int64_t first, int64_t n, int64_t offset,
                      const float* x, float* buffer) {
  const float* dy = Load(args.inputs[0], first, n, buffer);
  if (args.inputs.size() == 5) return dy;
  alignas(64) float norm[kBlock];
  NormalizeLoop(x, vectors(args, 0) + offset, vectors(args, 4) + offset, vectors(args, 5) + offset, n, norm);
  if (args.inputs[1].dtype != DType::kF32) RoundThrough(args.inputs[1].dtype, norm, n, norm);
  GateLoop(norm, n, dy, buffer);
  return buffer;
}

void BatchNormGrad(const Sums& sums, const Vectors& vectors, const KernelArgs& args, double epsilon) {
  const ChannelLoop& loop = sums.loop;
  sums.Clear(args);
  const float* mean = vectors(args, 0);
  const int64_t channels = loop.channels;
  loop.Repeat(args.inputs[3].as<float>(), vectors(args, 0));
  for (size_t i = 5; i < args.inputs.size(); ++i) {
    loop.Repeat(args.inputs[i].as<float>(), vectors(args, static_cast<int>(i) - 1));
  }
  loop.ForEachPiece([&](int part, int64_t first, int64_t n, int64_t offset) {
    alignas(64) float in0[kBlock], in1[kBlock];
    const float* x = Load(args.inputs[1], first, n, in1);
    const float* dy = Incoming(vectors, args, first, n, offset, x, in0);
    double *sum = sums.First(args, part) + offset, *product = sums.Second(args, part) + offset;
    if (FitsWide(channels, n)) return GradSumsRows(dy, x, mean, n / channels, channels, sum, product);
    GradSumsLoop(dy, x, mean + offset, n, sum, product);
  });
  sums.Fold(args);
  SetGradVectors(sums, vectors, args, epsilon);
  const float* factor = vectors(args, 1);
  const float* dy_mean = vectors(args, 2);
  const float* slope = vectors(args, 3);
  loop.ForEachPiece([&](int, int64_t first, int64_t n, int64_t offset) {
    alignas(64) float in0[kBlock], in1[kBlock], out[kBlock];
    float* dx = Target(args.outputs[0], first, out);
    const float* x = Load(args.inputs[1], first, n, in1);
    const float* dy = Incoming(vectors, args, first, n, offset, x, in0);
    GradInputLoop(dy, x, mean + offset, factor + offset, dy_mean + offset, slope + offset, n, dx);
    Store(args.outputs[0], first, n, dx);
  });
}

std::unique_ptr<runtime::Kernel> PrepareBatchNormGrad(const NodeDesc& desc) {
  WorkspaceLayout workspace;
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  const Sums sums(loop, &workspace);
  const Vectors vectors(loop, desc.inputs.size() == 5 ? 4 : 6, &workspace);
  const double epsilon = desc.attributes.Double("epsilon");
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) { BatchNormGrad(sums, vectors, args, epsilon); });
}

std::unique_ptr<runtime::Kernel> PrepareBatchNormUpdate(const NodeDesc& desc) {
  const double momentum = desc.attributes.Double("momentum");
  const double count = static_cast<double>(desc.attributes.Int("count"));
  const double unbias = count > 1 ? count / (count - 1) : 1.0;
  return MakeKernel(0, [=](const KernelArgs& args) {
    const auto blend = [&](float running, double stat) {
      return static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * stat);
    };
    float* running_mean = args.inputs[2].as<float>();
    float* running_var = args.inputs[3].as<float>();
    const float* bias = args.inputs.size() > 5 ? args.inputs[5].as<float>() : nullptr;
    for (int64_t c = 0; c < args.inputs[0].size(); ++c) {
      const double shift = bias == nullptr ? 0.0 : static_cast<double>(bias[c]);
      running_mean[c] = blend(running_mean[c], static_cast<double>(args.inputs[0].as<float>()[c]) + shift);
      running_var[c] = blend(running_var[c], static_cast<double>(args.inputs[1].as<float>()[c]) * unbias);
    }
    *args.inputs[4].as<int64_t>() += 1;
  });
}

}  // namespace

void RegisterBatchNorm(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kBatchNorm, {t, f, f}, {t, f, f}, PrepareBatchNorm);
    table->Add(ir::OpKind::kBatchNormGrad, {t, t, f, f, f}, {t, f, f}, PrepareBatchNormGrad);
    table->Add(ir::OpKind::kBatchNormGrad, {t, t, f, f, f, f, f}, {t, f, f}, PrepareBatchNormGrad);
    table->Add(ir::OpKind::kBatchNormStatistics, {t, f}, {f, f, f}, PrepareBatchNormStatistics);
    table->Add(ir::OpKind::kBatchNormInference, {t, f, f, f, f}, {t}, PrepareBatchNormInference);
  }
  table->Add(ir::OpKind::kBatchNormUpdate, {f, f, f, f, DType::kI64}, {}, PrepareBatchNormUpdate);
  table->Add(ir::OpKind::kBatchNormUpdate, {f, f, f, f, DType::kI64, f}, {}, PrepareBatchNormUpdate);
}

}  // namespace ampd::cpu
