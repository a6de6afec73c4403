// group_norm, image by image; a group's statistics are put together from its channels' (Chan et al. 1979).
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/channel_loops.h"
#include "engine/backend/cpu/channels.h"
#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

AMPD_CPU_CLONES void GradInputLoop(const float* __restrict dy, const float* __restrict x, const float* __restrict mean,
                                   const float* __restrict factor, const float* __restrict shift,
                                   const float* __restrict slope, int64_t n, float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * factor[i] - shift[i] - (x[i] - mean[i]) * slope[i];
}

struct GroupNorm {
  ChannelLoop image;  // the elements of one
  int64_t images, groups;
  int parts;
  double epsilon;

  int64_t size() const { return image.size; }
  int64_t group_channels() const { return image.channels / groups; }
  double group_count() const { return static_cast<double>(image.size / groups); }
};

GroupNorm MakeGroupNorm(const NodeDesc& desc, const Shape& x) {
  Shape one = x;
  one[0] = 1;
  GroupNorm norm{.image = MakeChannelLoop(one, 1),
                 .images = x[0],
                 .groups = desc.attributes.Int("groups", 1),
                 .epsilon = desc.attributes.Double("epsilon")};
  norm.parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, NumElements(x), kMinElementsPerThread), norm.images));
  return norm;
}

// One part's memory: sums of doubles over the period and over the channels, and fp32 vectors over the period.
class PartLayout {
 public:
  PartLayout(const GroupNorm& norm, WorkspaceLayout* workspace)
      : period_bytes_(AlignUp(norm.image.period * 8)), total_bytes_(AlignUp(norm.image.channels * 8)) {
    bytes_ = 2 * period_bytes_ + 4 * total_bytes_ + kVectors * period_bytes_;
    at_ = workspace->Add(norm.parts * bytes_);
  }
  double* Sums(const KernelArgs& args, int part, int i) const { return At<double>(args, part, i * period_bytes_); }
  // 0 and 1 of one image; 2 and 3 over all images.
  double* Totals(const KernelArgs& args, int part, int i) const {
    return At<double>(args, part, 2 * period_bytes_ + i * total_bytes_);
  }
  float* Vector(const KernelArgs& args, int part, int i) const {
    return At<float>(args, part, (2 + i) * period_bytes_ + 4 * total_bytes_);
  }

 private:
  static constexpr int kVectors = 4;

  template <typename T>
  T* At(const KernelArgs& args, int part, int64_t offset) const {
    return WorkspaceAt<T>(args, at_ + part * bytes_ + offset);
  }
  int64_t period_bytes_, total_bytes_, bytes_ = 0, at_ = 0;
};

void Spread(const ChannelLoop& loop, float* v) {
  for (int64_t i = loop.channels; i < loop.period; i += loop.channels) std::copy(v, v + loop.channels, v + i);
}

void ClearSums(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part) {
  for (int i : {0, 1}) std::fill_n(at.Sums(args, part, i), norm.image.period, 0.0);
}

void FoldSums(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part) {
  for (int i : {0, 1}) norm.image.FoldSums(at.Sums(args, part, i), norm.image.period, at.Totals(args, part, i));
}

// The image's first pixel is near enough to the means; an infinite one would turn every difference into NaN.
void ChannelMoments(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part, int64_t first) {
  float* shift = at.Vector(args, part, 0);
  const TensorView& x = args.inputs[0];
  ToF32(x.dtype, x.as<char>() + first * SizeOf(x.dtype), norm.image.channels, shift);
  for (int64_t c = 0; c < norm.image.channels; ++c) shift[c] = std::isfinite(shift[c]) ? shift[c] : 0.0f;
  Spread(norm.image, shift);
  ClearSums(norm, at, args, part);
  norm.image.ForEachPiece([&](int, int64_t start, int64_t n, int64_t offset) {
    alignas(64) float in[kBlock];
    MomentsLoop(Load(x, first + start, n, in), shift + offset, n, at.Sums(args, part, 0) + offset,
                at.Sums(args, part, 1) + offset);
  });
  FoldSums(norm, at, args, part);
}

// Mean and variance of channels begin..begin+count-1, `pixels` values each, from sums around `shift`.
void GroupMoments(const float* shift, const double* sums, const double* squares, int64_t count, double pixels,
                  double* mean, double* var) {
  double total = 0, spread = 0;
  for (int64_t c = 0; c < count; ++c) total += static_cast<double>(shift[c]) + sums[c] / pixels;
  *mean = total / static_cast<double>(count);
  for (int64_t c = 0; c < count; ++c) {
    const double centred = sums[c] / pixels;
    const double away = static_cast<double>(shift[c]) + centred - *mean;
    const double inside = squares[c] / pixels - centred * centred;
    spread += (inside < 0 ? 0 : inside) + away * away;
  }
  *var = spread / static_cast<double>(count);
}

void ForwardImage(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part, int64_t image) {
  const int64_t first = image * norm.size(), each = norm.group_channels();
  ChannelMoments(norm, at, args, part, first);
  float* vectors[3] = {at.Vector(args, part, 0), at.Vector(args, part, 1), at.Vector(args, part, 2)};
  const auto pixels = static_cast<double>(norm.image.rows());
  for (int64_t g = 0; g < norm.groups; ++g) {
    double mean = 0, var = 0;
    GroupMoments(vectors[0] + g * each, at.Totals(args, part, 0) + g * each, at.Totals(args, part, 1) + g * each, each,
                 pixels, &mean, &var);
    const auto inverse = static_cast<float>(1.0 / std::sqrt(var + norm.epsilon));
    args.outputs[1].as<float>()[image * norm.groups + g] = static_cast<float>(mean);
    args.outputs[2].as<float>()[image * norm.groups + g] = inverse;
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      vectors[0][c] = static_cast<float>(mean);
      vectors[1][c] = args.inputs.size() > 1 ? inverse * args.inputs[1].as<float>()[c] : inverse;
      vectors[2][c] = args.inputs.size() > 2 ? args.inputs[2].as<float>()[c] : 0.0f;
    }
  }
  for (float* v : vectors) Spread(norm.image, v);
  norm.image.ForEachPiece([&](int, int64_t start, int64_t n, int64_t offset) {
    alignas(64) float in[kBlock], out[kBlock];
    float* y = Target(args.outputs[0], first + start, out);
    NormalizeLoop(Load(args.inputs[0], first + start, n, in), vectors[0] + offset, vectors[1] + offset,
                  vectors[2] + offset, n, y);
    Store(args.outputs[0], first + start, n, y);
  });
}

std::unique_ptr<runtime::Kernel> PrepareGroupNorm(const NodeDesc& desc) {
  const GroupNorm norm = MakeGroupNorm(desc, desc.inputs[0].shape);
  WorkspaceLayout workspace;
  const PartLayout at(norm, &workspace);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    ParallelRange(norm.parts, norm.images, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) ForwardImage(norm, at, args, part, image);
    });
  });
}

// Turns the image's sums into the vectors 1 factor, 2 shift, 3 slope of dx, and adds its share of dscale and dbias.
void SetGradVectors(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part, int64_t image) {
  const double* sums = at.Totals(args, part, 0);
  const double* products = at.Totals(args, part, 1);
  const float* scale = args.inputs.size() > 4 ? args.inputs[4].as<float>() : nullptr;
  for (int64_t g = 0; g < norm.groups; ++g) {
    const double inverse = args.inputs[3].as<float>()[image * norm.groups + g];
    const int64_t begin = g * norm.group_channels(), end = begin + norm.group_channels();
    double sum = 0, product = 0;
    for (int64_t c = begin; c < end; ++c) {
      const double s = scale != nullptr ? static_cast<double>(scale[c]) : 1.0;
      sum += s * sums[c];
      product += s * products[c];
      at.Totals(args, part, 2)[c] += products[c] * inverse;
      at.Totals(args, part, 3)[c] += sums[c];
    }
    for (int64_t c = begin; c < end; ++c) {
      const double s = scale != nullptr ? static_cast<double>(scale[c]) : 1.0;
      at.Vector(args, part, 1)[c] = static_cast<float>(s * inverse);
      at.Vector(args, part, 2)[c] = static_cast<float>(inverse * sum / norm.group_count());
      at.Vector(args, part, 3)[c] = static_cast<float>(inverse * inverse * inverse * product / norm.group_count());
    }
  }
  for (int v = 1; v < 4; ++v) Spread(norm.image, at.Vector(args, part, v));
}

void GradImage(const GroupNorm& norm, const PartLayout& at, const KernelArgs& args, int part, int64_t image) {
  const int64_t first = image * norm.size();
  float* mean = at.Vector(args, part, 0);
  for (int64_t c = 0; c < norm.image.channels; ++c) {
    mean[c] = args.inputs[2].as<float>()[image * norm.groups + c / norm.group_channels()];
  }
  Spread(norm.image, mean);
  ClearSums(norm, at, args, part);
  norm.image.ForEachPiece([&](int, int64_t start, int64_t n, int64_t offset) {
    alignas(64) float in0[kBlock], in1[kBlock];
    GradSumsLoop(Load(args.inputs[0], first + start, n, in0), Load(args.inputs[1], first + start, n, in1),
                 mean + offset, n, at.Sums(args, part, 0) + offset, at.Sums(args, part, 1) + offset);
  });
  FoldSums(norm, at, args, part);
  SetGradVectors(norm, at, args, part, image);
  const float *factor = at.Vector(args, part, 1), *shift = at.Vector(args, part, 2), *slope = at.Vector(args, part, 3);
  norm.image.ForEachPiece([&](int, int64_t start, int64_t n, int64_t offset) {
    alignas(64) float in0[kBlock], in1[kBlock], out[kBlock];
    float* dx = Target(args.outputs[0], first + start, out);
    GradInputLoop(Load(args.inputs[0], first + start, n, in0), Load(args.inputs[1], first + start, n, in1),
                  mean + offset, factor + offset, shift + offset, slope + offset, n, dx);
    Store(args.outputs[0], first + start, n, dx);
  });
}

std::unique_ptr<runtime::Kernel> PrepareGroupNormGrad(const NodeDesc& desc) {
  const GroupNorm norm = MakeGroupNorm(desc, desc.inputs[1].shape);
  WorkspaceLayout workspace;
  const PartLayout at(norm, &workspace);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    for (int part = 0; part < norm.parts; ++part) {
      for (int i : {2, 3}) std::fill_n(at.Totals(args, part, i), norm.image.channels, 0.0);
    }
    ParallelRange(norm.parts, norm.images, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) GradImage(norm, at, args, part, image);
    });
    for (size_t v = 1; v < args.outputs.size(); ++v) {
      for (int64_t c = 0; c < norm.image.channels; ++c) {
        double sum = 0;
        for (int part = 0; part < norm.parts; ++part) sum += at.Totals(args, part, static_cast<int>(v) + 1)[c];
        args.outputs[v].as<float>()[c] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace

void RegisterGroupNorm(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kGroupNorm, {t}, {t, f, f}, PrepareGroupNorm);
    table->Add(ir::OpKind::kGroupNorm, {t, f}, {t, f, f}, PrepareGroupNorm);
    table->Add(ir::OpKind::kGroupNorm, {t, f, f}, {t, f, f}, PrepareGroupNorm);
    table->Add(ir::OpKind::kGroupNormGrad, {t, t, f, f}, {t}, PrepareGroupNormGrad);
    table->Add(ir::OpKind::kGroupNormGrad, {t, t, f, f, f}, {t, f, f}, PrepareGroupNormGrad);
  }
}

}  // namespace ampd::cpu
