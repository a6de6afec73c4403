// group_norm: sums per image and channel, put together for each group by a warp (Chan et al. 1979), then one pass that
// uses the groups' statistics.
#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/channel_norm.h"
#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/inverse_deviation.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

struct Groups {
  int64_t images, groups, channels;
  int64_t pixels;

  __host__ __device__ int64_t group_channels() const { return channels / groups; }
  __host__ __device__ int64_t count() const { return images * groups; }
};

// The two sums of a channel of an image go to [image][2][channels].
struct StoreSums {
  double* sums;
  int64_t channels;

  __device__ void operator()(int64_t image, int64_t channel, const double (&totals)[2]) const {
    for (int s = 0; s < 2; ++s) sums[(image * 2 + s) * channels + channel] = totals[s];
  }
};

// A warp's group, and its lane's channels in it.
struct GroupOfWarp {
  int64_t index, image, begin, end;  // channels [begin, end)

  __device__ explicit GroupOfWarp(const Groups& g) {
    index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    image = index / g.groups;
    begin = index % g.groups * g.group_channels();
    end = begin + g.group_channels();
  }
  template <typename Body>
  __device__ void ForEachChannel(const Body& body) const {
    for (int64_t c = begin + threadIdx.x % kWarp; c < end; c += kWarp) body(c);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GroupMoments(const T* __restrict__ x, const double* __restrict__ sums, Groups g, double epsilon,
                 float* __restrict__ mean_out, float* __restrict__ inverse_out) {
  const GroupOfWarp group(g);
  if (group.index >= g.count()) return;
  const auto pixels = static_cast<double>(g.pixels), each = static_cast<double>(g.group_channels());
  const T* first = x + group.image * g.pixels * g.channels;
  const double *sum = sums + group.image * 2 * g.channels, *square = sum + g.channels;
  const auto mean_of = [&](int64_t c) { return static_cast<double>(ShiftOf(Load(first[c]))) + sum[c] / pixels; };
  double total = 0;
  group.ForEachChannel([&](int64_t c) { total += mean_of(c); });
  const double mean = WarpReduce(total, SumOf()) / each;
  double spread = 0;
  group.ForEachChannel([&](int64_t c) {
    const double centred = sum[c] / pixels, away = mean_of(c) - mean;
    const double inside = square[c] / pixels - centred * centred;
    spread += (inside < 0 ? 0.0 : inside) + away * away;
  });
  const double var = WarpReduce(spread, SumOf()) / each;
  if (threadIdx.x % kWarp != 0) return;
  mean_out[group.index] = static_cast<float>(mean);
  inverse_out[group.index] = InverseDeviation<double>(var, epsilon);
}

struct ForwardVectors {
  Groups g;
  const float *mean, *inverse;
  const float *scale, *bias;  // may be null

  template <int kWidth>
  __device__ NormVectors<kWidth> Get(int64_t image, int64_t channel) const {
    NormVectors<kWidth> v;
    LoadOr(1.0f, scale, channel, v.factor);
    LoadOr(0.0f, bias, channel, v.bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const int64_t group = image * g.groups + (channel + j) / g.group_channels();
      v.mean[j] = mean[group];
      v.factor[j] *= inverse[group];
    }
    return v;
  }
};

// From the sums of dy and dy (x - mean) of a group's channels: what dx subtracts from dy * factor.
__global__ void __launch_bounds__(kThreads)
    GroupGradSums(const double* __restrict__ sums, const float* __restrict__ inverses, const float* scale, Groups g,
                  float* __restrict__ shift, float* __restrict__ slope) {
  const GroupOfWarp group(g);
  if (group.index >= g.count()) return;
  const double *sum = sums + group.image * 2 * g.channels, *product = sum + g.channels;
  double sum_of_group = 0, product_of_group = 0;
  group.ForEachChannel([&](int64_t c) {
    const double s = scale != nullptr ? static_cast<double>(scale[c]) : 1.0;
    sum_of_group += s * sum[c];
    product_of_group += s * product[c];
  });
  sum_of_group = WarpReduce(sum_of_group, SumOf());
  product_of_group = WarpReduce(product_of_group, SumOf());
  if (threadIdx.x % kWarp != 0) return;
  const auto inverse = static_cast<double>(inverses[group.index]);
  const auto count = static_cast<double>(g.pixels * g.group_channels());
  shift[group.index] = static_cast<float>(inverse * sum_of_group / count);
  slope[group.index] = static_cast<float>(inverse * inverse * inverse * product_of_group / count);
}

// dscale and dbias of a channel, over all images in order.
__global__ void __launch_bounds__(kThreads)
    VectorGrads(const double* __restrict__ sums, const float* __restrict__ inverse, Groups g,
                float* __restrict__ dscale, float* __restrict__ dbias) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= g.channels) return;
  double scale = 0, bias = 0;
#pragma unroll 4
  for (int64_t image = 0; image < g.images; ++image) {
    const double* of_image = sums + image * 2 * g.channels + c;
    bias += of_image[0];
    scale += of_image[g.channels] * static_cast<double>(inverse[image * g.groups + c / g.group_channels()]);
  }
  dscale[c] = static_cast<float>(scale);
  dbias[c] = static_cast<float>(bias);
}

struct GroupMeans {
  Groups g;
  const float* mean;

  template <int kWidth>
  __device__ ChannelVector<kWidth> Get(int64_t image, int64_t channel) const {
    ChannelVector<kWidth> v;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v.values[j] = mean[image * g.groups + (channel + j) / g.group_channels()];
    return v;
  }
};

struct BackwardVectors {
  Groups g;
  const float *mean, *inverse, *scale;  // scale may be null
  const float *shift, *slope;

  template <int kWidth>
  __device__ GradVectors<kWidth> Get(int64_t image, int64_t channel) const {
    GradVectors<kWidth> v;
    LoadOr(1.0f, scale, channel, v.factor);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const int64_t group = image * g.groups + (channel + j) / g.group_channels();
      v.mean[j] = mean[group];
      v.factor[j] *= inverse[group];
      v.shift[j] = shift[group];
      v.slope[j] = slope[group];
    }
    return v;
  }
};

struct GroupNorm {
  Groups groups;
  ChannelPlan plan;
  double epsilon;
  int64_t sums_at, partial_at, shift_at, slope_at, workspace_bytes;

  GroupNorm(const NodeDesc& desc, const ir::TensorType& x) : epsilon(desc.attributes.Double("epsilon")) {
    groups = {x.shape[0], desc.attributes.Int("groups", 1), x.shape.back(), 0};
    groups.pixels = NumElements(x.shape) / groups.images / groups.channels;
    plan = PlanChannels(groups.images, groups.pixels, groups.channels, PackOf(x.dtype));
    WorkspaceLayout layout;
    sums_at = layout.Add(groups.images * 2 * groups.channels * 8);
    partial_at = layout.Add(plan.workspace_bytes(2));
    shift_at = layout.Add(groups.count() * 4);
    slope_at = layout.Add(groups.count() * 4);
    workspace_bytes = layout.bytes();
  }
  unsigned group_blocks() const { return static_cast<unsigned>(CeilDiv(groups.count(), kWarps)); }
};

template <typename T>
absl::Status LaunchForward(const Context& context, const std::string& name, const GroupNorm& norm,
                           const KernelArgs& args) {
  const Groups& g = norm.groups;
  const T* x = args.inputs[0].as<T>();
  double* sums = WorkspaceAt<double>(args, norm.sums_at);
  float *mean = args.outputs[1].as<float>(), *inverse = args.outputs[2].as<float>();
  AMPD_RETURN_IF_ERROR(SumChannels<kPack<T>>(name, norm.plan, Moments<T>{{}, x, g.pixels, g.channels},
                                             StoreSums{sums, g.channels}, WorkspaceAt<void>(args, norm.partial_at),
                                             context.stream()));
  AMPD_RETURN_IF_ERROR(Launch(name, GroupMoments<T>, norm.group_blocks(), kThreads, 0, context.stream(), x, sums, g,
                              norm.epsilon, mean, inverse));
  const size_t inputs = args.inputs.size();
  const ForwardVectors vectors{.g = g,
                               .mean = mean,
                               .inverse = inverse,
                               .scale = inputs > 1 ? args.inputs[1].as<float>() : nullptr,
                               .bias = inputs > 2 ? args.inputs[2].as<float>() : nullptr};
  const Normalize<T, ForwardVectors> body{x, args.outputs[0].as<T>(), vectors};
  return MapChannels<kPack<T>>(name, norm.plan, body, context.stream());
}

template <typename T>
absl::Status LaunchBackward(const Context& context, const std::string& name, const GroupNorm& norm,
                            const KernelArgs& args) {
  const Groups& g = norm.groups;
  const T *dy = args.inputs[0].as<T>(), *x = args.inputs[1].as<T>();
  const float *mean = args.inputs[2].as<float>(), *inverse = args.inputs[3].as<float>();
  const float* scale = args.inputs.size() > 4 ? args.inputs[4].as<float>() : nullptr;
  double* sums = WorkspaceAt<double>(args, norm.sums_at);
  float *shift = WorkspaceAt<float>(args, norm.shift_at), *slope = WorkspaceAt<float>(args, norm.slope_at);
  const GradSums<T, GroupMeans> body{{}, dy, x, g.channels, {g, mean}};
  AMPD_RETURN_IF_ERROR(SumChannels<kPack<T>>(name, norm.plan, body, StoreSums{sums, g.channels},
                                             WorkspaceAt<void>(args, norm.partial_at), context.stream()));
  AMPD_RETURN_IF_ERROR(Launch(name, GroupGradSums, norm.group_blocks(), kThreads, 0, context.stream(), sums, inverse,
                              scale, g, shift, slope));
  if (args.outputs.size() > 1) {
    AMPD_RETURN_IF_ERROR(Launch(name, VectorGrads, static_cast<unsigned>(CeilDiv(g.channels, kThreads)), kThreads, 0,
                                context.stream(), sums, inverse, g, args.outputs[1].as<float>(),
                                args.outputs[2].as<float>()));
  }
  const BackwardVectors vectors{g, mean, inverse, scale, shift, slope};
  return MapChannels<kPack<T>>(name, norm.plan, GradInput<T, BackwardVectors>{dy, x, args.outputs[0].as<T>(), vectors},
                               context.stream());
}

runtime::PrepareKernel Prepare(Context* context, bool gradient) {
  return [=](const NodeDesc& desc) {
    const GroupNorm norm(desc, desc.inputs[gradient ? 1 : 0]);
    return MakeKernel(norm.workspace_bytes, [=, name = desc.name](const KernelArgs& args) {
      return VisitData(args.inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return gradient ? LaunchBackward<T>(*context, name, norm, args) : LaunchForward<T>(*context, name, norm, args);
      });
    });
  };
}

}  // namespace

void RegisterGroupNorm(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  const auto forward = Prepare(context, false), gradient = Prepare(context, true);
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kGroupNorm, {t}, {t, f, f}, forward);
    table->Add(ir::OpKind::kGroupNorm, {t, f}, {t, f, f}, forward);
    table->Add(ir::OpKind::kGroupNorm, {t, f, f}, {t, f, f}, forward);
    table->Add(ir::OpKind::kGroupNormGrad, {t, t, f, f}, {t}, gradient);
    table->Add(ir::OpKind::kGroupNormGrad, {t, t, f, f, f}, {t, f, f}, gradient);
  }
}

}  // namespace ampd::cuda
