// A list of layers added to a forward graph: a whole model, or one network of several.
#ifndef AMPD_ENGINE_MODELS_BUILD_LAYERS_H_
#define AMPD_ENGINE_MODELS_BUILD_LAYERS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/model.pb.h"
#include "engine/core/shape.h"
#include "engine/ir/graph.h"
#include "engine/models/layers.h"

namespace ampd::models {

struct SampleInfo;

// INVALID_ARGUMENT with one violation.
absl::Status InvalidField(const std::string& field, absl::string_view description);

// Counts parameters and activations, of which a job's graphs may have 10^12: far above any machine's memory, and few
// enough that no product of extents overflows.
class ElementBudget {
 public:
  // INVALID_ARGUMENT with a violation of `field` when this tensor is too much.
  absl::Status Count(const Shape& shape, const std::string& field);

 private:
  double elements_ = 0;
};

// Adds `layers` in order to `graph` and returns the last one's output. `inputs`: what layers may read by name; the
// first layer reads the first of them unless it says otherwise. INVALID_ARGUMENT with a violation of "<field>[i]", or
// of "<field>[i].name" where a parameter or state of the layer would be named as one of an earlier layer is.
absl::StatusOr<LayerOutput> AddLayers(const google::protobuf::RepeatedPtrField<v1::Layer>& layers,
                                      const std::string& field,
                                      const std::vector<std::pair<std::string, LayerOutput>>& inputs,
                                      LayerBuilder* builder, ElementBudget* budget, ir::Graph* graph);

// The same for all of a job's model without networks, on `batch` samples: inputs "x" f32 [batch, ...] and, where
// samples differ in length, "lengths" i32 [batch] are added first. A flattened image comes in PyTorch's order.
absl::StatusOr<LayerOutput> AddModelLayers(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch,
                                           bool training, ir::Graph* graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_BUILD_LAYERS_H_
