#include "engine/backend/cpu/quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

// Scales stay where both they and their reciprocals are normal floats.
constexpr float kLargestScale = 0x1p126f;

// Finite values saturate; infinities and NaN stay, so that the step's check still sees an overflow.
AMPD_CPU_CLONES void ScaleLoop(const float* __restrict x, int64_t n, float scale, float limit, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * scale;
    const float above = scaled > limit ? limit : scaled;
    const float clamped = above < -limit ? -limit : above;
    y[i] = (FloatBits(x[i]) & 0x7fffffffu) < 0x7f800000u ? clamped : x[i];
  }
}

AMPD_CPU_CLONES void DequantizeLoop(const float* x, int64_t n, float a, float b, float* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * a * b;
}

// The bits of magnitudes order as the magnitudes do, with NaN above infinity.
AMPD_CPU_CLONES uint32_t MaxMagnitudeLoop(const uint32_t* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i] & 0x7fffffffu);
  return largest;
}

// With `by_part` also the largest magnitude of each thread's part, as bits.
void Quantize(int threads, const TensorView& x, float scale, const TensorView& y, uint32_t* by_part) {
  const auto limit = static_cast<float>(MaxFinite(y.dtype));
  ParallelRange(PartsFor(threads, y.size(), kMinElementsPerThread), y.size(), kBlock,
                [&](int part, int64_t begin, int64_t end) {
                  alignas(64) float loaded[kBlock], scaled[kBlock];
                  uint32_t largest = 0;
                  for (int64_t i = begin; i < end; i += kBlock) {
                    const int64_t m = std::min(kBlock, end - i);
                    const float* values = Load(x, i, m, loaded);
                    ScaleLoop(values, m, scale, limit, scaled);
                    Store(y, i, m, scaled);
                    if (by_part == nullptr) continue;
                    largest = std::max(largest, MaxMagnitudeLoop(reinterpret_cast<const uint32_t*>(values), m));
                  }
                  if (by_part != nullptr) by_part[part] = largest;
                });
}

// Codes [rows, columns] as [columns, rows].
void Turn(int threads, const TensorView& codes, const TensorView& turned) {
  const int64_t columns = turned.shape[0], rows = turned.shape[1];
  const auto* from = codes.as<uint8_t>();
  auto* to = turned.as<uint8_t>();
  ParallelRange(PartsFor(threads, turned.size(), kMinElementsPerThread), columns, 1,
                [&](int, int64_t begin, int64_t end) {
                  for (int64_t column = begin; column < end; ++column) {
                    for (int64_t row = 0; row < rows; ++row) to[column * rows + row] = from[row * columns + column];
                  }
                });
}

uint32_t MaxMagnitudeBits(const TensorView& x, int64_t begin, int64_t end) {
  alignas(64) float buffer[kBlock];
  uint32_t largest = 0;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t m = std::min(kBlock, end - i);
    largest = std::max(largest, MaxMagnitudeLoop(reinterpret_cast<const uint32_t*>(Load(x, i, m, buffer)), m));
  }
  return largest;
}

float Amax(int threads, const TensorView& x, uint32_t* by_part) {
  const int parts = PartsFor(threads, x.size(), kMinElementsPerThread);
  std::fill_n(by_part, parts, 0u);
  ParallelRange(parts, x.size(), kBlock,
                [&](int part, int64_t begin, int64_t end) { by_part[part] = MaxMagnitudeBits(x, begin, end); });
  return FloatFromBits(*std::max_element(by_part, by_part + parts));
}

// Transformer Engine's delayed scaling, "max" of the history: scale = largest value of the format / amax / 2^margin.
void Record(float amax, const TensorView& history, int64_t* count, float largest_over_margin, float* scale) {
  if (!std::isfinite(amax)) return;
  auto* entries = history.as<float>();
  entries[static_cast<uint64_t>(*count) % static_cast<uint64_t>(history.size())] = amax;
  ++*count;
  const float largest = *std::max_element(entries, entries + history.size());
  if (largest > 0) *scale = std::clamp(largest_over_margin / largest, 1 / kLargestScale, kLargestScale);
}

std::unique_ptr<runtime::Kernel> PrepareQuantize(const runtime::NodeDesc& desc) {
  const int threads = std::max(desc.threads, 1);
  const int64_t workspace = desc.outputs.size() > 1 ? threads * static_cast<int64_t>(sizeof(uint32_t)) : 0;
  return MakeKernel(workspace, [threads](const runtime::KernelArgs& args) {
    const bool tracks = args.outputs.size() > 1;
    auto* by_part = tracks ? static_cast<uint32_t*>(args.workspace) : nullptr;
    if (tracks) std::fill_n(by_part, threads, 0u);
    Quantize(threads, args.inputs[0], *args.inputs[1].as<float>(), args.outputs[0], by_part);
    if (tracks) *args.outputs[1].as<float>() = FloatFromBits(*std::max_element(by_part, by_part + threads));
    if (args.outputs.size() > 2) Turn(threads, args.outputs[0], args.outputs[2]);
  });
}

std::unique_ptr<runtime::Kernel> PrepareDequantize(const runtime::NodeDesc& desc) {
  return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
    Dequantize(threads, args.inputs[0], *args.inputs[1].as<float>(), *args.inputs[2].as<float>(), args.outputs[0]);
  });
}

std::unique_ptr<runtime::Kernel> PrepareAmaxUpdate(const runtime::NodeDesc& desc) {
  const bool e4m3 = absl::string_view(desc.attributes.String("dtype")) == DTypeName(DType::kF8E4M3);
  const double largest = MaxFinite(e4m3 ? DType::kF8E4M3 : DType::kF8E5M2);
  const auto over_margin = static_cast<float>(std::ldexp(largest, -static_cast<int>(desc.attributes.Int("margin"))));
  const int64_t workspace = std::max(desc.threads, 1) * static_cast<int64_t>(sizeof(uint32_t));
  return MakeKernel(workspace, [threads = desc.threads, over_margin](const runtime::KernelArgs& args) {
    const float amax = Amax(threads, args.inputs[0], static_cast<uint32_t*>(args.workspace));
    Record(amax, args.inputs[1], args.inputs[2].as<int64_t>(), over_margin, args.inputs[3].as<float>());
  });
}

}  // namespace

void Dequantize(int threads, const TensorView& x, float a, float b, const TensorView& y) {
  ParallelRange(PartsFor(threads, y.size(), kMinElementsPerThread), y.size(), kBlock,
                [&](int, int64_t begin, int64_t end) {
                  alignas(64) float buffer[kBlock];
                  for (int64_t i = begin; i < end; i += kBlock) {
                    const int64_t m = std::min(kBlock, end - i);
                    float* target = Target(y, i, buffer);
                    DequantizeLoop(x.as<float>() + i, m, 1 / a, 1 / b, target);
                    Store(y, i, m, target);
                  }
                });
}

void RegisterQuantize(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  for (DType t : kDataTypes) {
    for (DType f8 : {DType::kF8E4M3, DType::kF8E5M2}) {
      table->Add(ir::OpKind::kQuantize, {t, f}, {f8}, PrepareQuantize);
      table->Add(ir::OpKind::kQuantize, {t, f}, {f8, f}, PrepareQuantize);
      table->Add(ir::OpKind::kQuantize, {t, f}, {f8, f, f8}, PrepareQuantize);
    }
    table->Add(ir::OpKind::kAmaxUpdate, {t, f, DType::kI64, f}, {}, PrepareAmaxUpdate);
    table->Add(ir::OpKind::kDequantize, {f, f, f}, {t}, PrepareDequantize);
  }
}

}  // namespace ampd::cpu
