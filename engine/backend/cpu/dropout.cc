#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/core/rng.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Philox blocks made at once; kBlock draws.
constexpr int64_t kLanes = kBlock / 4;

struct DropoutConfig {
  // UniformFloat(word) >= rate, exactly, as an integer comparison: word >> 8 >= ceil(rate * 2^24).
  uint32_t threshold;
  float scale;
  uint32_t stream;
  int threads;
};

// Draws 4 * first_block .. 4 * first_block + kBlock - 1 of the stream of `first`, whose word 0 is ignored. One lane a
// block, so that the rounds vectorise.
AMPD_CPU_CLONES void DrawWords(uint32_t first_block, const PhiloxBlock& first, uint64_t seed, uint32_t* words) {
  alignas(64) uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    c0[i] = first_block + static_cast<uint32_t>(i);
    c1[i] = first[1];
    c2[i] = first[2];
    c3[i] = first[3];
  }
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

AMPD_CPU_CLONES void KeepLoop(const uint32_t* __restrict words, const float* __restrict x, int64_t n,
                              uint32_t threshold, float scale, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float kept = x[i] * scale;
    y[i] = words[i] >> 8 >= threshold ? kept : 0.0f;
  }
}

// Elements e to e + kBlock - 1 of a row, as far as it has them.
void DropBlock(const DropoutConfig& config, const KernelArgs& args, int64_t row, int64_t e, int64_t row_size) {
  const PhiloxBlock counter =
      RngCounter(args.step->attempted_step, args.step->first_sample + static_cast<uint32_t>(row), 0, config.stream);
  alignas(64) uint32_t words[kBlock];
  alignas(64) float in[kBlock], out[kBlock];
  const int64_t n = std::min(kBlock, row_size - e);
  const int64_t first = row * row_size + e;
  DrawWords(static_cast<uint32_t>(e / 4), counter, args.step->seed, words);
  float* y = Target(args.outputs[0], first, out);
  KeepLoop(words, Load(args.inputs[0], first, n, in), n, config.threshold, config.scale, y);
  Store(args.outputs[0], first, n, y);
}

void Dropout(const DropoutConfig& config, const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape;
  const int64_t rows = shape[0];
  const int64_t row_size = NumElements(shape) / std::max<int64_t>(rows, 1);
  // Rows may be few and long.
  const int64_t blocks = (row_size + kBlock - 1) / kBlock;
  // A draw costs about as much as ten cheap elements.
  const int parts = PartsFor(config.threads, rows * row_size, kMinElementsPerThread / 8);
  ParallelRange(parts, rows * blocks, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) DropBlock(config, args, b / blocks, b % blocks * kBlock, row_size);
  });
}

std::unique_ptr<runtime::Kernel> PrepareDropout(const NodeDesc& desc) {
  const double rate = desc.attributes.Double("rate");
  const DropoutConfig config = {static_cast<uint32_t>(std::ceil(rate * 0x1p24)), static_cast<float>(1 / (1 - rate)),
                                static_cast<uint32_t>(desc.attributes.Int("stream")), desc.threads};
  return MakeKernel(0, [config](const KernelArgs& args) { Dropout(config, args); });
}

}  // namespace

void RegisterDropout(runtime::KernelTable* table) {
  for (DType t : kDataTypes) table->Add(ir::OpKind::kDropout, {t}, {t}, PrepareDropout);
}

}  // namespace ampd::cpu
