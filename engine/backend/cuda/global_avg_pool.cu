#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

template <typename T>
struct PixelSums : RunSums<1> {
  const T* x;
  int64_t channels;

  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t row, int64_t channel, NoConstants,
                                             float (&sums)[1][kWidth]) const {
    float v[kWidth];
    LoadFloats(x + row * channels + channel, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[0][j] += v[j];
  }
};

template <typename T>
struct WriteMean {
  T* y;
  int64_t channels;
  double inverse;

  __device__ void operator()(int64_t image, int64_t channel, const double (&sums)[1]) const {
    y[image * channels + channel] = Store<T>(static_cast<float>(sums[0] * inverse));
  }
};

// Gives every pixel its share.
template <typename T>
struct SpreadGrad {
  const T* dy;
  T* dx;
  int64_t channels;
  float pixels;

  template <int kWidth>
  struct Share {
    float values[kWidth];
  };
  template <int kWidth>
  __device__ __forceinline__ Share<kWidth> Begin(int64_t image, int64_t channel) const {
    Share<kWidth> share;
    LoadFloats(dy + image * channels + channel, share.values);
#pragma unroll
    for (float& value : share.values) value /= pixels;
    return share;
  }
  template <typename Constants>
  __device__ __forceinline__ void operator()(int64_t at, const Constants& share) const {
    StoreFloats(share.values, dx + at);
  }
};

ChannelPlan PlanImages(const ir::TensorType& images) {
  const Shape& s = images.shape;
  return PlanChannels(s[0], s[1] * s[2], s[3], PackOf(images.dtype));
}

std::unique_ptr<runtime::Kernel> PrepareForward(Context* context, const NodeDesc& desc) {
  const ChannelPlan plan = PlanImages(desc.inputs[0]);
  return MakeKernel(plan.workspace_bytes(1), [=, name = desc.name](const KernelArgs& args) {
    return VisitData(args.inputs[0].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const PixelSums<T> body{{}, args.inputs[0].as<T>(), plan.channels};
      const WriteMean<T> finish{args.outputs[0].as<T>(), plan.channels, 1.0 / static_cast<double>(plan.rows)};
      return SumChannels<kPack<T>>(name, plan, body, finish, args.workspace, context->stream());
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareBackward(Context* context, const NodeDesc& desc) {
  const ChannelPlan plan = PlanImages(desc.outputs[0]);
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return VisitData(args.inputs[0].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const SpreadGrad<T> body{args.inputs[0].as<T>(), args.outputs[0].as<T>(), plan.channels,
                               static_cast<float>(plan.rows)};
      return MapChannels<kPack<T>>(name, plan, body, context->stream());
    });
  });
}

}  // namespace

void RegisterGlobalAvgPool(runtime::KernelTable* table, Context* context) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kGlobalAvgPool, {t}, {t}, [=](const NodeDesc& d) { return PrepareForward(context, d); });
    table->Add(ir::OpKind::kGlobalAvgPoolGrad, {t}, {t},
               [=](const NodeDesc& d) { return PrepareBackward(context, d); });
  }
}

}  // namespace ampd::cuda
