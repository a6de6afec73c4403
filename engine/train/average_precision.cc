#include "engine/train/average_precision.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ampd::train {
namespace {

constexpr double kLeastProbability = 0.01;
constexpr double kMostOverlap = 0.45;
constexpr double kRightOverlap = 0.5;
constexpr size_t kMostOfClass = 400;
constexpr size_t kMostOfImage = 200;

bool MoreProbable(const Detection& a, const Detection& b) { return a.probability > b.probability; }

// The most probable first; equals stay in order.
void KeepMostProbable(size_t count, std::vector<Detection>* detections) {
  std::stable_sort(detections->begin(), detections->end(), MoreProbable);
  if (detections->size() > count) detections->resize(count);
}

}  // namespace

std::vector<Detection> Detections(const v1::MultiboxLoss& loss, const Tensor& priors,
                                  absl::Span<const float> prediction, int64_t width) {
  const int64_t count = priors.shape()[0], logits = width - ops::kOffsets;
  std::vector<double> log_sums(static_cast<size_t>(count));
  for (int64_t p = 0; p < count; ++p) {
    log_sums[p] = ops::LogSumExp(prediction.data() + p * width + ops::kOffsets, logits);
  }
  std::vector<Detection> kept;
  for (int64_t c = 0; c + 1 < logits; ++c) {
    std::vector<Detection> candidates;
    for (int64_t p = 0; p < count; ++p) {
      const float* of_prior = prediction.data() + p * width;
      const double probability = std::exp(static_cast<double>(of_prior[ops::kOffsets + 1 + c]) - log_sums[p]);
      if (!(probability > kLeastProbability)) continue;
      candidates.push_back({c, probability,
                            ops::DecodeOffsets(priors.as<float>().data() + p * ops::kPriorNumbers, of_prior,
                                               loss.center_variance(), loss.size_variance())});
    }
    KeepMostProbable(kMostOfClass, &candidates);
    const size_t first = kept.size();
    for (const Detection& candidate : candidates) {
      const bool hidden =
          std::any_of(kept.begin() + static_cast<ptrdiff_t>(first), kept.end(),
                      [&](const Detection& k) { return ops::Overlap(k.box, candidate.box) > kMostOverlap; });
      if (!hidden) kept.push_back(candidate);
    }
  }
  KeepMostProbable(kMostOfImage, &kept);
  return kept;
}

void AveragePrecision::Add(absl::Span<const Detection> detections, absl::Span<const float> targets) {
  const auto classes = static_cast<int64_t>(of_class_.size());
  std::vector<const float*> boxes;
  for (size_t at = 0; at + ops::kBoxNumbers <= targets.size(); at += ops::kBoxNumbers) {
    if (ops::KindOfBox(&targets[at], classes) != ops::BoxKind::kBox) continue;
    boxes.push_back(&targets[at]);
    ++of_class_[static_cast<size_t>(targets[at])].boxes;
  }
  std::vector<bool> taken(boxes.size(), false);
  for (const Detection& detection : detections) {
    size_t best = boxes.size();
    double most = 0;
    for (size_t b = 0; b < boxes.size(); ++b) {
      if (taken[b] || static_cast<int64_t>(boxes[b][0]) != detection.c) continue;
      const double overlap = ops::Overlap(detection.box, ops::CornersOfBox(boxes[b]));
      if (overlap >= kRightOverlap && overlap > most) most = overlap, best = b;
    }
    const bool right = best < boxes.size();
    if (right) taken[best] = true;
    of_class_[static_cast<size_t>(detection.c)].found.push_back({detection.probability, right});
  }
}

double AveragePrecision::AreaUnder(const OfClass& of_class) {
  std::vector<Found> found = of_class.found;
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.probability > b.probability; });
  // Precision after each right detection, each of which adds 1 / boxes to the recall.
  std::vector<double> precisions;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].right) continue;
    precisions.push_back(static_cast<double>(precisions.size() + 1) / static_cast<double>(i + 1));
  }
  double area = 0, best = 0;
  for (auto precision = precisions.rbegin(); precision != precisions.rend(); ++precision) {
    best = std::max(best, *precision);
    area += best;
  }
  return area / static_cast<double>(of_class.boxes);
}

double AveragePrecision::Mean() const {
  double sum = 0;
  int64_t classes = 0;
  for (const OfClass& of_class : of_class_) {
    if (of_class.boxes == 0) continue;
    sum += AreaUnder(of_class);
    ++classes;
  }
  return classes == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(classes);
}

}  // namespace ampd::train
