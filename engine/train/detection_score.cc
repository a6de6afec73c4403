#include "engine/train/detection_score.h"

#include <algorithm>
#include <cmath>

#include "engine/models/multibox.h"
#include "engine/ops/box_overlap.h"

namespace ampd::train {
namespace {

using ops::Corners;

constexpr double kLeastScore = 0.01, kMostOverlap = 0.45, kFound = 0.5;
constexpr size_t kMostDetections = 200;

struct Candidate {
  float score;
  int64_t class_index;
  Corners box;
};

Corners Decode(const float* prior, const float* offsets, double center_variance, double size_variance) {
  double low[2], high[2];
  for (int axis = 0; axis < 2; ++axis) {
    const double side = static_cast<double>(prior[2 + axis]);
    const double center =
        static_cast<double>(prior[axis]) + static_cast<double>(offsets[axis]) * center_variance * side;
    const double length = side * std::exp(static_cast<double>(offsets[2 + axis]) * size_variance);
    low[axis] = center - length / 2;
    high[axis] = center + length / 2;
  }
  return {low[0], low[1], high[0], high[1]};
}

// Of one prior: every class that is probable enough.
void AppendCandidates(const float* prediction, int64_t outputs, const Corners& box, std::vector<Candidate>* all) {
  const float* logits = prediction + 4;
  const int64_t classes = outputs - 4;
  const double largest = static_cast<double>(*std::max_element(logits, logits + classes));
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(logits[c]) - largest);
  for (int64_t c = 1; c < classes; ++c) {
    const double score = std::exp(static_cast<double>(logits[c]) - largest) / sum;
    if (score >= kLeastScore) all->push_back({static_cast<float>(score), c - 1, box});
  }
}

// The most probable first; those that repeat one of them are dropped.
std::vector<Candidate> Suppressed(std::vector<Candidate> all) {
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  std::vector<Candidate> kept;
  for (const Candidate& candidate : all) {
    if (kept.size() == kMostDetections) break;
    const bool repeats = std::any_of(kept.begin(), kept.end(), [&](const Candidate& other) {
      return other.class_index == candidate.class_index && ops::Overlap(other.box, candidate.box) > kMostOverlap;
    });
    if (!repeats) kept.push_back(candidate);
  }
  return kept;
}

}  // namespace

DetectionScore::DetectionScore(const v1::MultiboxLoss& loss)
    : priors_(models::PriorsOf(loss)), center_variance_(loss.center_variance()), size_variance_(loss.size_variance()) {}

void DetectionScore::Add(const float* predictions, int64_t outputs, absl::Span<const float> targets) {
  std::vector<Candidate> candidates;
  for (int64_t p = 0; p < priors_.shape()[0]; ++p) {
    const float* prediction = predictions + p * outputs;
    if (!std::all_of(prediction, prediction + outputs, [](float v) { return std::isfinite(v); })) continue;
    const Corners box = Decode(priors_.as<float>().data() + 4 * p, prediction, center_variance_, size_variance_);
    AppendCandidates(prediction, outputs, box, &candidates);
  }
  std::vector<const float*> boxes;
  for (size_t i = 0; i + ops::kBoxNumbers <= targets.size(); i += ops::kBoxNumbers) {
    if (!ops::IsBox(&targets[i]) || ops::IsBroken(&targets[i])) continue;
    boxes.push_back(&targets[i]);
    ++classes_[static_cast<int64_t>(targets[i])].boxes;
  }
  std::vector<bool> found(boxes.size(), false);
  for (const Candidate& detection : Suppressed(std::move(candidates))) {
    double most = 0;
    size_t best = 0;
    for (size_t g = 0; g < boxes.size(); ++g) {
      if (static_cast<int64_t>(boxes[g][0]) != detection.class_index) continue;
      const double overlap = ops::Overlap(ops::CornersOfBox(boxes[g]), detection.box);
      if (overlap > most) most = overlap, best = g;
    }
    const bool right = most >= kFound && !found[best];
    if (right) found[best] = true;
    classes_[detection.class_index].detections.push_back({detection.score, right});
  }
}

double DetectionScore::MeanAveragePrecision() const {
  double sum = 0;
  int64_t counted = 0;
  for (const auto& [index, of_class] : classes_) {
    if (of_class.boxes == 0) continue;
    ++counted;
    std::vector<Detection> detections = of_class.detections;
    std::stable_sort(detections.begin(), detections.end(),
                     [](const Detection& a, const Detection& b) { return a.score > b.score; });
    std::vector<double> precisions;  // at each detection that is right
    double right = 0;
    for (size_t i = 0; i < detections.size(); ++i) {
      if (detections[i].right) precisions.push_back(++right / static_cast<double>(i + 1));
    }
    double best = 0, area = 0;
    for (auto it = precisions.rbegin(); it != precisions.rend(); ++it) area += best = std::max(best, *it);
    sum += area / static_cast<double>(of_class.boxes);
  }
  return counted == 0 ? 0 : sum / static_cast<double>(counted);
}

}  // namespace ampd::train
