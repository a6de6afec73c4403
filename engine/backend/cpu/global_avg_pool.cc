#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

struct Images {
  int64_t batch, pixels, channels;
  int parts;
};

Images MakeImages(const Shape& shape, int threads) {
  const int parts = PartsFor(threads, NumElements(shape), kMinElementsPerThread);
  return {shape[0], shape[1] * shape[2], shape[3], static_cast<int>(std::min<int64_t>(parts, shape[0]))};
}

AMPD_CPU_CLONES void SumLoop(const float* __restrict x, int64_t n, double* __restrict sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(x[i]);
}

void SumPixels(const Images& images, const TensorView& x, int64_t first, double* sums) {
  alignas(64) float in[kBlock];
  std::fill(sums, sums + images.channels, 0.0);
  const int64_t width = std::min(images.channels, kBlock);
  const int64_t pixels_at_once = images.channels <= kBlock ? kBlock / images.channels : 1;
  for (int64_t pixel = 0; pixel < images.pixels; pixel += pixels_at_once) {
    const int64_t pixels = std::min(pixels_at_once, images.pixels - pixel);
    for (int64_t c = 0; c < images.channels; c += width) {
      const int64_t n = std::min(width, images.channels - c);
      const float* block = Load(x, first + pixel * images.channels + c, pixels * n, in);
      for (int64_t i = 0; i < pixels; ++i) SumLoop(block + i * n, n, sums + c);
    }
  }
}

std::unique_ptr<runtime::Kernel> PrepareGlobalAvgPool(const NodeDesc& desc) {
  const Images images = MakeImages(desc.inputs[0].shape, desc.threads);
  WorkspaceLayout workspace;
  const int64_t sums_stride = AlignUp(images.channels * sizeof(double));
  const int64_t mean_stride = AlignUp(images.channels * sizeof(float));
  const int64_t sums_at = workspace.Add(images.parts * sums_stride);
  const int64_t mean_at = workspace.Add(images.parts * mean_stride);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    ParallelRange(images.parts, images.batch, 1, [&](int part, int64_t begin, int64_t end) {
      double* sums = WorkspaceAt<double>(args, sums_at + part * sums_stride);
      float* mean = WorkspaceAt<float>(args, mean_at + part * mean_stride);
      for (int64_t n = begin; n < end; ++n) {
        SumPixels(images, args.inputs[0], n * images.pixels * images.channels, sums);
        const double inverse = 1.0 / static_cast<double>(images.pixels);
        for (int64_t c = 0; c < images.channels; ++c) mean[c] = static_cast<float>(sums[c] * inverse);
        const int64_t bytes = images.channels * SizeOf(args.outputs[0].dtype);
        FromF32(mean, images.channels, args.outputs[0].dtype, args.outputs[0].as<char>() + n * bytes);
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareGlobalAvgPoolGrad(const NodeDesc& desc) {
  const Images images = MakeImages(desc.outputs[0].shape, desc.threads);
  WorkspaceLayout workspace;
  const int64_t stride = AlignUp(images.channels * sizeof(float));
  const int64_t share_at = workspace.Add(images.parts * stride);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    ParallelRange(images.parts, images.batch, 1, [&](int part, int64_t begin, int64_t end) {
      float* share = WorkspaceAt<float>(args, share_at + part * stride);
      const DType dtype = args.outputs[0].dtype;
      const int64_t bytes = images.channels * SizeOf(dtype);
      for (int64_t n = begin; n < end; ++n) {
        ToF32(dtype, args.inputs[0].as<char>() + n * bytes, images.channels, share);
        for (int64_t c = 0; c < images.channels; ++c) share[c] /= static_cast<float>(images.pixels);
        char* pixel = args.outputs[0].as<char>() + n * images.pixels * bytes;
        FromF32(share, images.channels, dtype, pixel);
        for (int64_t i = 1; i < images.pixels; ++i) std::memcpy(pixel + i * bytes, pixel, bytes);
      }
    });
  });
}

}  // namespace

void RegisterGlobalAvgPool(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kGlobalAvgPool, {t}, {t}, PrepareGlobalAvgPool);
    table->Add(ir::OpKind::kGlobalAvgPoolGrad, {t}, {t}, PrepareGlobalAvgPoolGrad);
  }
}

}  // namespace ampd::cpu
