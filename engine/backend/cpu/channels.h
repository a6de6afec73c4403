// Loops over tensors [..., C] that treat every channel alike. Rows of few channels are walked several at a time (one
// *period*), with the per-channel vectors repeated to match, so that the inner loops stay long.
#ifndef AMPD_ENGINE_BACKEND_CPU_CHANNELS_H_
#define AMPD_ENGINE_BACKEND_CPU_CHANNELS_H_

#include <algorithm>
#include <cstdint>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/ir/graph.h"

namespace ampd::cpu {

struct ChannelLoop {
  int64_t size = 0;      // elements
  int64_t channels = 0;  // C
  int64_t period = 0;    // a multiple of C
  int parts = 1;

  int64_t rows() const { return size / channels; }

  // Repeats a vector of C to one of `period`.
  void Repeat(const float* per_channel, float* repeated) const {
    for (int64_t i = 0; i < period; i += channels) std::copy(per_channel, per_channel + channels, repeated + i);
  }

  // body(part, first element, elements, offset within the period), in pieces of at most kBlock that cross no period.
  template <typename Body>
  void ForEachPiece(const Body& body) const {
    ParallelRange(parts, size, period, [&](int part, int64_t begin, int64_t end) {
      for (int64_t start = begin; start < end; start += period) {
        const int64_t length = std::min(period, end - start);
        for (int64_t offset = 0; offset < length; offset += kBlock) {
          body(part, start + offset, std::min(kBlock, length - offset), offset);
        }
      }
    });
  }

  // Sums over parts and repeats of accumulators laid out [part][`stride` doubles], into C values at `sums`.
  void FoldSums(const double* accumulators, int64_t stride, double* sums) const {
    std::fill(sums, sums + channels, 0.0);
    for (int part = 0; part < parts; ++part) {
      const double* of_part = accumulators + part * stride;
      for (int64_t i = 0; i < period; i += channels) {
        for (int64_t c = 0; c < channels; ++c) sums[c] += of_part[i + c];
      }
    }
  }
};

// For a tensor of `shape` whose last axis is the channels.
inline ChannelLoop MakeChannelLoop(const Shape& shape, int threads) {
  ChannelLoop loop;
  loop.size = NumElements(shape);
  loop.channels = shape.back();
  loop.period = loop.channels * ((kBlock / 2 + loop.channels - 1) / loop.channels);
  loop.parts = PartsFor(threads, loop.size, std::max(kMinElementsPerThread, loop.period));
  return loop;
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_CHANNELS_H_
