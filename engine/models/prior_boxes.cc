#include "engine/models/prior_boxes.h"

#include <cmath>
#include <utility>
#include <vector>

#include "engine/core/shape.h"

namespace ampd::models {
namespace {

// Width and height of the priors of a cell.
std::vector<std::pair<double, double>> SidesOf(const v1::PriorMap& map) {
  std::vector<std::pair<double, double>> sides;
  for (const double ratio : map.ratios()) {
    sides.emplace_back(map.scale() * std::sqrt(ratio), map.scale() / std::sqrt(ratio));
  }
  if (map.has_extra_scale()) sides.emplace_back(map.extra_scale(), map.extra_scale());
  return sides;
}

}  // namespace

int64_t CountPriors(const v1::MultiboxLoss& loss) {
  int64_t count = 0;
  for (const v1::PriorMap& map : loss.maps()) {
    count += map.height() * map.width() * (map.ratios_size() + (map.has_extra_scale() ? 1 : 0));
  }
  return count;
}

Tensor PriorBoxes(const v1::MultiboxLoss& loss) {
  Tensor priors(DType::kF32, Shape{CountPriors(loss), 4});
  float* next = priors.as<float>().data();
  for (const v1::PriorMap& map : loss.maps()) {
    const std::vector<std::pair<double, double>> sides = SidesOf(map);
    for (int64_t row = 0; row < map.height(); ++row) {
      for (int64_t column = 0; column < map.width(); ++column) {
        for (const auto& [width, height] : sides) {
          *next++ = static_cast<float>((static_cast<double>(column) + 0.5) / static_cast<double>(map.width()));
          *next++ = static_cast<float>((static_cast<double>(row) + 0.5) / static_cast<double>(map.height()));
          *next++ = static_cast<float>(width);
          *next++ = static_cast<float>(height);
        }
      }
    }
  }
  return priors;
}

}  // namespace ampd::models
