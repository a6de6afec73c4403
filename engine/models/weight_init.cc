#include "engine/models/weight_init.h"

#include <algorithm>
#include <cmath>

namespace ampd::models {
namespace {

ir::Initializer He(int64_t fan) {
  return {ir::Initializer::Kind::kNormal, std::sqrt(2.0 / static_cast<double>(std::max<int64_t>(fan, 1)))};
}

}  // namespace

ir::Initializer WeightInitializer(const v1::WeightInit& init, const Shape& shape, ir::Initializer fallback) {
  switch (init.kind_case()) {
    case v1::WeightInit::kNormal:
      return {ir::Initializer::Kind::kNormal, init.normal()};
    case v1::WeightInit::kUniform:
      return {ir::Initializer::Kind::kUniform, init.uniform()};
    case v1::WeightInit::kHeFanOut:
      return He(NumElements(shape) / std::max<int64_t>(shape.back(), 1));
    case v1::WeightInit::kHeFanIn:
      return He(NumElements(shape) / std::max<int64_t>(shape.front(), 1));
    case v1::WeightInit::KIND_NOT_SET:
      return fallback;
  }
  return fallback;
}

ir::Initializer BiasInitializer(const v1::WeightInit& init, ir::Initializer fallback) {
  return init.kind_case() == v1::WeightInit::KIND_NOT_SET ? fallback : ir::Initializer{};
}

}  // namespace ampd::models
