// What the kernels of every backend compute of one prior and one box, in double; docs/ops.md says what each op means.
// Pure; thread-safe; callable on a GPU.
#ifndef AMPD_ENGINE_OPS_MULTIBOX_ELEMENTS_H_
#define AMPD_ENGINE_OPS_MULTIBOX_ELEMENTS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/core/host_device.h"
#include "engine/ops/loss_elements.h"

namespace ampd::ops {

// Numbers of a prior (x and y of its center, width, height) and of a target (class, x0, y0, x1, y1), and of the offsets
// that a prediction begins with.
inline constexpr int64_t kPriorNumbers = 4;
inline constexpr int64_t kBoxNumbers = 5;
inline constexpr int64_t kOffsets = 4;

struct Corners {
  double x0, y0, x1, y1;
};

// Center and sides.
struct CenteredBox {
  double x, y, w, h;
};

AMPD_HOST_DEVICE inline CenteredBox CenteredBoxOf(const float* prior) {
  return {static_cast<double>(prior[0]), static_cast<double>(prior[1]), static_cast<double>(prior[2]),
          static_cast<double>(prior[3])};
}

AMPD_HOST_DEVICE inline Corners CornersOf(const CenteredBox& p) {
  return {p.x - p.w / 2, p.y - p.h / 2, p.x + p.w / 2, p.y + p.h / 2};
}

AMPD_HOST_DEVICE inline Corners CornersOfPrior(const float* prior) { return CornersOf(CenteredBoxOf(prior)); }

// `target`: class and corners.
AMPD_HOST_DEVICE inline Corners CornersOfBox(const float* target) {
  return {static_cast<double>(target[1]), static_cast<double>(target[2]), static_cast<double>(target[3]),
          static_cast<double>(target[4])};
}

AMPD_HOST_DEVICE inline double AreaOf(const Corners& c) { return (c.x1 - c.x0) * (c.y1 - c.y0); }

// Jaccard overlap: the area that the two share over the area that they cover; 0 where they share none.
AMPD_HOST_DEVICE inline double Overlap(const Corners& a, const Corners& b) {
  const double w = (a.x1 < b.x1 ? a.x1 : b.x1) - (a.x0 > b.x0 ? a.x0 : b.x0);
  const double h = (a.y1 < b.y1 ? a.y1 : b.y1) - (a.y0 > b.y0 ? a.y0 : b.y0);
  if (!(w > 0 && h > 0)) return 0;
  const double shared = w * h;
  return shared / (AreaOf(a) + AreaOf(b) - shared);
}

// What a target's five numbers are.
enum class BoxKind { kBox, kNone, kWrong };

// kNone: a negative class, or no area. kWrong: a number that is not finite, or a class that is no whole number below
// `classes`.
AMPD_HOST_DEVICE inline BoxKind KindOfBox(const float* target, int64_t classes) {
  const float c = target[0];
  if (c < 0) return BoxKind::kNone;
  if (!(c < static_cast<float>(classes)) || c != std::floor(c)) return BoxKind::kWrong;
  // Sums of what is not finite are not.
  const float sum =
      (target[1] - target[1]) + (target[2] - target[2]) + (target[3] - target[3]) + (target[4] - target[4]);
  if (sum != 0) return BoxKind::kWrong;
  return target[3] > target[1] && target[4] > target[2] ? BoxKind::kBox : BoxKind::kNone;
}

// The box of `targets` [boxes, 5] that a prior overlaps most and by more than `threshold`, of equals the first; -1
// where there is none.
AMPD_HOST_DEVICE inline int64_t BoxOver(const Corners& prior, const float* targets, int64_t boxes, int64_t classes,
                                        double threshold) {
  int64_t box = -1;
  double most = threshold;
  for (int64_t b = 0; b < boxes; ++b) {
    const float* target = targets + b * kBoxNumbers;
    if (KindOfBox(target, classes) != BoxKind::kBox) continue;
    const double overlap = Overlap(prior, CornersOfBox(target));
    if (overlap > most) most = overlap, box = b;
  }
  return box;
}

// What a prediction should say of the box that `prior` stands for (Liu et al. 2016, equation 2).
AMPD_HOST_DEVICE inline void EncodeOffsets(const float* prior, const float* target, double center_variance,
                                           double size_variance, float* offsets) {
  const Corners box = CornersOfBox(target);
  const CenteredBox at = CenteredBoxOf(prior);
  offsets[0] = static_cast<float>(((box.x0 + box.x1) / 2 - at.x) / at.w / center_variance);
  offsets[1] = static_cast<float>(((box.y0 + box.y1) / 2 - at.y) / at.h / center_variance);
  offsets[2] = static_cast<float>(std::log((box.x1 - box.x0) / at.w) / size_variance);
  offsets[3] = static_cast<float>(std::log((box.y1 - box.y0) / at.h) / size_variance);
}

// The box that a prediction's offsets say: EncodeOffsets the other way.
AMPD_HOST_DEVICE inline Corners DecodeOffsets(const float* prior, const float* offsets, double center_variance,
                                              double size_variance) {
  const CenteredBox at = CenteredBoxOf(prior), said = CenteredBoxOf(offsets);
  return CornersOf({at.x + said.x * center_variance * at.w, at.y + said.y * center_variance * at.h,
                    at.w * std::exp(said.w * size_variance), at.h * std::exp(said.h * size_variance)});
}

// log sum exp of `logits`, the background's and the classes'. NaN where one is NaN or +infinity, or all are -infinity.
AMPD_HOST_DEVICE inline double LogSumExp(const float* logits, int64_t count) {
  double largest = static_cast<double>(logits[0]);
  for (int64_t c = 1; c < count; ++c) {
    const double z = static_cast<double>(logits[c]);
    if (z > largest || z != z) largest = z;
    if (largest != largest) return largest;
  }
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += std::exp(static_cast<double>(logits[c]) - largest);
  return largest + std::log(sum);
}

// Of all priors of a sample that stand for no box, those with the largest keys are the hardest: by cross-entropy,
// rounded to f32, NaN above all, and of equals the first. No two keys are equal. `prior` is below 2^32.
AMPD_HOST_DEVICE inline uint64_t HardnessKey(double cross_entropy, int64_t prior) {
  const auto rounded = static_cast<float>(cross_entropy);
  const uint32_t rank = rounded > 0 ? std::bit_cast<uint32_t>(rounded) : rounded != rounded ? 0xffffffffu : 0u;
  return static_cast<uint64_t>(rank) << 32 | (0xffffffffu - static_cast<uint32_t>(prior));
}

// How many priors without a box count beside `matched` ones, of `priors` in all.
AMPD_HOST_DEVICE inline int64_t CountedNegatives(int64_t priors, int64_t matched, double ratio) {
  const double wanted = std::floor(static_cast<double>(matched) * ratio);
  const int64_t others = priors - matched;
  return wanted < static_cast<double>(others) ? static_cast<int64_t>(wanted) : others;
}

// The smooth L1 losses of a prediction's offsets, added up.
AMPD_HOST_DEVICE inline double OffsetLoss(const float* prediction, const float* offsets) {
  double sum = 0;
  for (int64_t i = 0; i < kOffsets; ++i) {
    sum += SmoothL1Loss({static_cast<double>(prediction[i]), static_cast<double>(offsets[i]), 1, 1});
  }
  return sum;
}

// Of one prior of class `c`, whose prediction begins with offsets, before `logits` logits; `factor`: dloss times its
// share. 0 and NaN are so throughout.
AMPD_HOST_DEVICE inline void PriorGrad(const float* prediction, int64_t logits, int32_t c, const float* offsets,
                                       double location_weight, double factor, float* gradient) {
  if (factor == 0 || factor != factor) {
    for (int64_t i = 0; i < kOffsets + logits; ++i) gradient[i] = static_cast<float>(factor);
    return;
  }
  for (int64_t i = 0; i < kOffsets; ++i) {
    const double slope =
        c > 0 ? SmoothL1LossGrad({static_cast<double>(prediction[i]), static_cast<double>(offsets[i]), 1, 1}) : 0;
    gradient[i] = static_cast<float>(factor * location_weight * slope);
  }
  const double log_sum = LogSumExp(prediction + kOffsets, logits);
  for (int64_t i = 0; i < logits; ++i) {
    const double probability = std::exp(static_cast<double>(prediction[kOffsets + i]) - log_sum);
    gradient[kOffsets + i] = static_cast<float>(factor * (probability - (i == c ? 1 : 0)));
  }
}

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_MULTIBOX_ELEMENTS_H_
