// batch_norm: sums per channel, whose end turns them into a few vectors, then one pass that uses those.
#include "engine/backend/cuda/channel_norm.h"
#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

__device__ __forceinline__ double InverseOf(float var, double epsilon) {
  return 1.0 / sqrt(static_cast<double>(var) + epsilon);
}
__device__ __forceinline__ float FactorOf(float var, double epsilon, float scale) {
  return static_cast<float>(InverseOf(var, epsilon) * static_cast<double>(scale));
}

// What the sums' end leaves for each channel.
struct Statistics {
  float* mean;
  float* var;
  float* factor;  // scale / sqrt(var + epsilon)
};

template <typename T>
struct FinishMoments {
  const T* x;
  const float* scale;
  Statistics out;
  double inverse_count, epsilon;

  __device__ void operator()(int64_t, int64_t c, const double (&sums)[2]) const {
    const double centred = sums[0] * inverse_count;
    const double var = sums[1] * inverse_count - centred * centred;
    out.mean[c] = static_cast<float>(static_cast<double>(ShiftOf(Load(x[c]))) + centred);
    out.var[c] = static_cast<float>(var < 0 ? 0.0 : var);
    out.factor[c] = FactorOf(out.var[c], epsilon, scale[c]);
  }
};

__global__ void Factors(const float* __restrict__ scale, const float* __restrict__ var, double epsilon,
                        int64_t channels, float* __restrict__ factor) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (c < channels) factor[c] = FactorOf(var[c], epsilon, scale[c]);
}

struct ForwardVectors {
  const float *mean, *factor, *bias;

  template <int kWidth>
  __device__ NormVectors<kWidth> Get(int64_t, int64_t channel) const {
    NormVectors<kWidth> v;
    LoadFloats(mean + channel, v.mean);
    LoadFloats(factor + channel, v.factor);
    LoadFloats(bias + channel, v.bias);
    return v;
  }
};

// Turns the sums of dy and dy (x - mean) into gradients of the vectors and into what dx needs.
struct FinishGradSums {
  const float *scale, *var;
  float *dscale, *dbias;
  float *factor, *shift, *slope;
  double inverse_count, epsilon;

  __device__ void operator()(int64_t, int64_t c, const double (&sums)[2]) const {
    const double inverse = InverseOf(var[c], epsilon), wide_factor = inverse * static_cast<double>(scale[c]);
    dscale[c] = static_cast<float>(sums[1] * inverse);
    dbias[c] = static_cast<float>(sums[0]);
    factor[c] = static_cast<float>(wide_factor);
    shift[c] = static_cast<float>(wide_factor * (sums[0] * inverse_count));
    slope[c] = static_cast<float>(wide_factor * (sums[1] * inverse * inverse * inverse_count));
  }
};

struct BackwardVectors {
  const float *mean, *factor, *shift, *slope;

  template <int kWidth>
  __device__ GradVectors<kWidth> Get(int64_t, int64_t channel) const {
    GradVectors<kWidth> v;
    LoadFloats(mean + channel, v.mean);
    LoadFloats(factor + channel, v.factor);
    LoadFloats(shift + channel, v.shift);
    LoadFloats(slope + channel, v.slope);
    return v;
  }
};

// The relu behind a norm, which is computed anew as the forward pass does: dy is 0 where it is not above 0.
template <typename T>
struct ReluGate {
  const float *factor, *bias;

  template <int kWidth>
  struct Vectors {
    float factor[kWidth], bias[kWidth];
  };
  template <int kWidth>
  __device__ __forceinline__ Vectors<kWidth> Get(int64_t channel) const {
    Vectors<kWidth> v;
    LoadFloats(factor + channel, v.factor);
    LoadFloats(bias + channel, v.bias);
    return v;
  }
  template <int kWidth>
  __device__ __forceinline__ static void Apply(const Vectors<kWidth>& gate, const float (&x)[kWidth],
                                               const float (&mean)[kWidth], float (&dy)[kWidth]) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float norm = RoundTo<T>((x[j] - mean[j]) * gate.factor[j] + gate.bias[j]);
      dy[j] = norm <= 0 ? 0.0f : dy[j];
    }
  }
};

struct ChannelMeans {
  const float* mean;

  template <int kWidth>
  __device__ ChannelVector<kWidth> Get(int64_t, int64_t channel) const {
    ChannelVector<kWidth> v;
    LoadFloats(mean + channel, v.values);
    return v;
  }
};

struct BatchNorm {
  ChannelPlan plan;
  double epsilon;
  int64_t vector_at[3] = {}, partial_at = 0, workspace_bytes = 0;

  // `vectors` of fp32 in the workspace, and what the sums need.
  BatchNorm(const NodeDesc& desc, int vectors, bool sums) : epsilon(desc.attributes.Double("epsilon")) {
    const ir::TensorType& x = desc.inputs[0];
    plan = PlanChannels(1, NumElements(x.shape) / x.shape.back(), x.shape.back(), PackOf(x.dtype));
    WorkspaceLayout layout;
    for (int i = 0; i < vectors; ++i) vector_at[i] = layout.Add(plan.channels * 4);
    partial_at = layout.Add(sums ? plan.workspace_bytes(2) : 0);
    workspace_bytes = layout.bytes();
  }
  float* vector(const KernelArgs& args, int i) const { return WorkspaceAt<float>(args, vector_at[i]); }
  double inverse_count() const { return 1.0 / static_cast<double>(plan.rows); }
};

// Where a kernel runs and what its errors name.
struct Site {
  Context* context;
  std::string name;
};

template <typename T>
absl::Status LaunchMoments(const Site& site, const BatchNorm& norm, const KernelArgs& args, const Statistics& out) {
  const T* x = args.inputs[0].as<T>();
  const FinishMoments<T> finish{x, args.inputs[1].as<float>(), out, norm.inverse_count(), norm.epsilon};
  return SumChannels<kPack<T>>(site.name, norm.plan, Moments<T>{{}, x, norm.plan.rows, norm.plan.channels}, finish,
                               WorkspaceAt<void>(args, norm.partial_at), site.context->stream());
}

struct Training {
  static constexpr int kVectors = 1;
  static constexpr bool kSums = true;
  template <typename T>
  static absl::Status Run(const Site& site, const BatchNorm& norm, const KernelArgs& args) {
    const Statistics out{args.outputs[1].as<float>(), args.outputs[2].as<float>(), norm.vector(args, 0)};
    AMPD_RETURN_IF_ERROR(LaunchMoments<T>(site, norm, args, out));
    const ForwardVectors vectors{out.mean, out.factor, args.inputs[2].as<float>()};
    const Normalize<T, ForwardVectors> body{args.inputs[0].as<T>(), args.outputs[0].as<T>(), vectors};
    return MapChannels<kPack<T>>(site.name, norm.plan, body, site.context->stream());
  }
};

struct StatisticsAlone {
  static constexpr int kVectors = 0;
  static constexpr bool kSums = true;
  template <typename T>
  static absl::Status Run(const Site& site, const BatchNorm& norm, const KernelArgs& args) {
    const Statistics out{args.outputs[0].as<float>(), args.outputs[1].as<float>(), args.outputs[2].as<float>()};
    return LaunchMoments<T>(site, norm, args, out);
  }
};

struct Inference {
  static constexpr int kVectors = 1;
  static constexpr bool kSums = false;
  template <typename T>
  static absl::Status Run(const Site& site, const BatchNorm& norm, const KernelArgs& args) {
    float* factor = norm.vector(args, 0);
    const auto blocks = static_cast<unsigned>(CeilDiv(norm.plan.channels, kChannelThreads));
    AMPD_RETURN_IF_ERROR(Launch(site.name, Factors, blocks, kChannelThreads, 0, site.context->stream(),
                                args.inputs[1].as<float>(), args.inputs[4].as<float>(), norm.epsilon,
                                norm.plan.channels, factor));
    const ForwardVectors vectors{args.inputs[3].as<float>(), factor, args.inputs[2].as<float>()};
    const Normalize<T, ForwardVectors> body{args.inputs[0].as<T>(), args.outputs[0].as<T>(), vectors};
    return MapChannels<kPack<T>>(site.name, norm.plan, body, site.context->stream());
  }
};

struct Gradient {
  static constexpr int kVectors = 3;
  static constexpr bool kSums = true;
  template <typename T>
  static absl::Status Run(const Site& site, const BatchNorm& norm, const KernelArgs& args) {
    if (args.inputs.size() == 5) return RunGated<T>(site, norm, args, NoGate());
    return RunGated<T>(site, norm, args, ReluGate<T>{args.inputs[5].as<float>(), args.inputs[6].as<float>()});
  }

  template <typename T, typename Gate>
  static absl::Status RunGated(const Site& site, const BatchNorm& norm, const KernelArgs& args, const Gate& gate) {
    const T *dy = args.inputs[0].as<T>(), *x = args.inputs[1].as<T>();
    const float* mean = args.inputs[3].as<float>();
    float *factor = norm.vector(args, 0), *shift = norm.vector(args, 1), *slope = norm.vector(args, 2);
    const FinishGradSums finish{.scale = args.inputs[2].as<float>(),
                                .var = args.inputs[4].as<float>(),
                                .dscale = args.outputs[1].as<float>(),
                                .dbias = args.outputs[2].as<float>(),
                                .factor = factor,
                                .shift = shift,
                                .slope = slope,
                                .inverse_count = norm.inverse_count(),
                                .epsilon = norm.epsilon};
    const GradSums<T, ChannelMeans, Gate> sums{{}, dy, x, norm.plan.channels, {mean}, gate};
    AMPD_RETURN_IF_ERROR(SumChannels<kPack<T>>(site.name, norm.plan, sums, finish,
                                               WorkspaceAt<void>(args, norm.partial_at), site.context->stream()));
    const GradInput<T, BackwardVectors, Gate> body{dy, x, args.outputs[0].as<T>(), {mean, factor, shift, slope}, gate};
    return MapChannels<kPack<T>>(site.name, norm.plan, body, site.context->stream());
  }
};

template <typename Op>
runtime::PrepareKernel Prepare(Context* context) {
  return [=](const NodeDesc& desc) {
    const BatchNorm norm(desc, Op::kVectors, Op::kSums);
    return MakeKernel(norm.workspace_bytes, [=, site = Site{context, desc.name}](const KernelArgs& args) {
      return VisitData(args.inputs[0].dtype,
                       [&](auto tag) { return Op::template Run<typename decltype(tag)::type>(site, norm, args); });
    });
  };
}

struct Running {
  float *mean, *var;
  int64_t* batches;
};

// `bias` may be null.
__global__ void Update(const float* __restrict__ mean, const float* __restrict__ var, const float* __restrict__ bias,
                       int64_t channels, double momentum, double unbias, Running running) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (c == 0) *running.batches += 1;
  if (c >= channels) return;
  const auto blend = [&](float old, double statistic) {
    return static_cast<float>((1 - momentum) * static_cast<double>(old) + momentum * statistic);
  };
  const double shift = bias == nullptr ? 0.0 : static_cast<double>(bias[c]);
  running.mean[c] = blend(running.mean[c], static_cast<double>(mean[c]) + shift);
  running.var[c] = blend(running.var[c], static_cast<double>(var[c]) * unbias);
}

runtime::PrepareKernel PrepareUpdate(Context* context) {
  return [=](const NodeDesc& desc) {
    const double momentum = desc.attributes.Double("momentum");
    const auto count = static_cast<double>(desc.attributes.Int("count"));
    const double unbias = count > 1 ? count / (count - 1) : 1.0;
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      const int64_t channels = args.inputs[0].size();
      const Running running{args.inputs[2].as<float>(), args.inputs[3].as<float>(), args.inputs[4].as<int64_t>()};
      const float* bias = args.inputs.size() > 5 ? args.inputs[5].as<float>() : nullptr;
      return Launch(name, Update, static_cast<unsigned>(CeilDiv(channels, kChannelThreads)), kChannelThreads, 0,
                    context->stream(), args.inputs[0].as<float>(), args.inputs[1].as<float>(), bias, channels, momentum,
                    unbias, running);
    });
  };
}

}  // namespace

void RegisterBatchNorm(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kBatchNorm, {t, f, f}, {t, f, f}, Prepare<Training>(context));
    table->Add(ir::OpKind::kBatchNormGrad, {t, t, f, f, f}, {t, f, f}, Prepare<Gradient>(context));
    table->Add(ir::OpKind::kBatchNormGrad, {t, t, f, f, f, f, f}, {t, f, f}, Prepare<Gradient>(context));
    table->Add(ir::OpKind::kBatchNormStatistics, {t, f}, {f, f, f}, Prepare<StatisticsAlone>(context));
    table->Add(ir::OpKind::kBatchNormInference, {t, f, f, f, f}, {t}, Prepare<Inference>(context));
  }
  table->Add(ir::OpKind::kBatchNormUpdate, {f, f, f, f, DType::kI64}, {}, PrepareUpdate(context));
  table->Add(ir::OpKind::kBatchNormUpdate, {f, f, f, f, DType::kI64, f}, {}, PrepareUpdate(context));
}

}  // namespace ampd::cuda
