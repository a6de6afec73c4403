// layer_norm, rms_norm, group_norm and instance_norm layers, and the transposed convolution.
#include <cmath>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/layers.h"
#include "engine/models/weight_init.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

}  // namespace

absl::StatusOr<LayerOutput> LayerBuilder::LayerNorm(const v1::Layer& layer, const LayerOutput& x) {
  const Shape& shape = graph_->type(x.value).shape;
  const int64_t axis = static_cast<int64_t>(shape.size()) - 1;
  std::vector<ir::ValueId> inputs = {x.value};
  inputs.push_back(AddVector(layer.name() + ".weight", x, ir::Initializer::Kind::kOnes));
  if (layer.layer_norm().bias()) {
    inputs.push_back(AddVector(layer.name() + ".bias", x, ir::Initializer::Kind::kZeros));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kLayerNorm, layer.name(), std::move(inputs),
                                                  {{"axis", axis}, {"epsilon", layer.layer_norm().epsilon()}}));
  return LayerOutput{y, x.flattened};
}

absl::StatusOr<LayerOutput> LayerBuilder::RmsNorm(const v1::Layer& layer, const LayerOutput& x) {
  const int64_t axis = static_cast<int64_t>(graph_->type(x.value).shape.size()) - 1;
  const ir::ValueId weight = AddVector(layer.name() + ".weight", x, ir::Initializer::Kind::kOnes);
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kRmsNorm, layer.name(), {x.value, weight},
                                                  {{"axis", axis}, {"epsilon", layer.rms_norm().epsilon()}}));
  return LayerOutput{y, x.flattened};
}

absl::StatusOr<LayerOutput> LayerBuilder::GroupNorm(const v1::Layer& layer, int64_t groups, double epsilon, bool affine,
                                                    const LayerOutput& x) {
  const Shape& shape = graph_->type(x.value).shape;
  const char* kind = layer.has_instance_norm() ? "instance_norm" : "group_norm";
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("[", kind, "] ", what, ", node ", layer.name()));
  };
  if (!x.flattened.empty()) return refuse("cannot follow a flatten layer: its groups would not be PyTorch's");
  if (layer.has_instance_norm() && shape.size() < 3) {
    return refuse(absl::StrCat("needs an image or a sequence, has ", ShapeString(shape)));
  }
  // Each value would be its own mean, and nothing below learn. A group norm of one value PyTorch takes in batches.
  if (training_ && layer.has_instance_norm() && NumElements(absl::MakeConstSpan(shape).subspan(1)) == shape.back()) {
    return refuse(absl::StrCat("needs more than one value a channel to train, has ", ShapeString(shape)));
  }
  std::vector<ir::ValueId> inputs = {x.value};
  if (affine) {
    inputs.push_back(AddVector(layer.name() + ".weight", x, ir::Initializer::Kind::kOnes));
    inputs.push_back(AddVector(layer.name() + ".bias", x, ir::Initializer::Kind::kZeros));
  }
  AMPD_ASSIGN_OR_RETURN(const ir::ValueId y, Emit(OpKind::kGroupNorm, layer.name(), std::move(inputs),
                                                  {{"groups", groups}, {"epsilon", epsilon}}));
  return LayerOutput{y, {}};
}

absl::StatusOr<LayerOutput> LayerBuilder::ConvTranspose2d(const v1::Layer& layer, const LayerOutput& x) {
  AMPD_RETURN_IF_ERROR(RequireImage(OpKind::kConvTranspose2d, layer.name(), x.value));
  const v1::ConvTranspose2dLayer& conv = layer.conv_transpose2d();
  const int64_t channels = graph_->type(x.value).shape[3], groups = conv.groups();
  const auto ints = [](const google::protobuf::RepeatedField<int64_t>& field) {
    return Ints(field.begin(), field.end());
  };
  // PyTorch counts the inputs of a filter from the weight's second extent, here the outputs of a group.
  const Shape filter = {channels, conv.kernel(0), conv.kernel(1), conv.filters() / groups};
  const double bound = 1.0 / std::sqrt(static_cast<double>(filter[1] * filter[2] * filter[3]));
  const ir::Initializer uniform = {ir::Initializer::Kind::kUniform, bound};
  const ir::ValueId w = graph_->AddParameter({.name = layer.name() + ".weight",
                                              .type = {DType::kF32, filter},
                                              .init = WeightInitializer(conv.init(), filter, uniform),
                                              .layout = ir::DiskLayout::kConvFilter});
  AMPD_ASSIGN_OR_RETURN(ir::ValueId y, Emit(OpKind::kConvTranspose2d, layer.name(), {x.value, w},
                                            {{"strides", ints(conv.stride())},
                                             {"pads", ints(conv.pads())},
                                             {"dilations", ints(conv.dilation())},
                                             {"output_padding", ints(conv.output_padding())},
                                             {"groups", groups}}));
  AMPD_ASSIGN_OR_RETURN(
      y, BiasAndActivation(layer.name(), y, conv.bias(), BiasInitializer(conv.init(), uniform), conv.activation()));
  return LayerOutput{y, {}};
}

}  // namespace ampd::models
