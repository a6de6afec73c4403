// One function a kind of layer: what it adds to a forward graph. Used by model.cc.
#ifndef AMPD_ENGINE_MODELS_LAYERS_H_
#define AMPD_ENGINE_MODELS_LAYERS_H_

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/model.pb.h"
#include "engine/core/shape.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// A layer's output, as the next layer sees it.
struct LayerOutput {
  ir::ValueId value = -1;
  // {h, w, c} when the last axis is a flattened image whose order differs from PyTorch's (c, h, w); else empty.
  Shape flattened;
  // i32 [batch]: axis 1 is time, and steps at and past a sample's length, which these are, hold nothing that counts
  // (finite values, though). -1: every step counts, or there is no time.
  ir::ValueId lengths = -1;

  bool padded() const { return lengths >= 0; }
};

// Whether a layer is a function of each element by itself, and has nothing to train.
bool IsActivation(const v1::Layer& layer);

// Adds nodes to one forward graph. `training` chooses between batch statistics and running ones, and turns dropout on.
class LayerBuilder {
 public:
  LayerBuilder(ir::Graph* graph, bool training) : graph_(graph), training_(training) {}

  // The layer's output. INVALID_ARGUMENT "[op] ..., node NAME" when shapes do not fit, or when a layer would mix steps
  // that count with steps that do not.
  absl::StatusOr<LayerOutput> Add(const v1::Layer& layer, const std::vector<LayerOutput>& inputs);
  // `x`, the output of `layer`, as the loss takes it: a flattened image in PyTorch's order, for which of the outputs a
  // label or a target means must not depend on how images lie in memory.
  absl::StatusOr<LayerOutput> InTorchOrder(const std::string& layer, const LayerOutput& x);

 private:
  absl::StatusOr<LayerOutput> AddKind(const v1::Layer& layer, const std::vector<LayerOutput>& inputs);
  absl::Status CheckPadded(const v1::Layer& layer, const std::vector<LayerOutput>& inputs) const;
  absl::StatusOr<LayerOutput> Dense(const v1::Layer& layer, const LayerOutput& x);
  // The weight of a dense layer: one of its own, or the table of the embedding that it names.
  absl::StatusOr<ir::ValueId> DenseWeight(const v1::Layer& layer, const LayerOutput& x, double bound);
  absl::StatusOr<LayerOutput> Conv2d(const v1::Layer& layer, const LayerOutput& input);
  absl::StatusOr<LayerOutput> BatchNorm(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Pool(const v1::Layer& layer, ir::OpKind op, const v1::Pool2dLayer& pool,
                                   const LayerOutput& x);
  absl::StatusOr<LayerOutput> Flatten(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Dropout(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> ConvTranspose2d(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> LayerNorm(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> RmsNorm(const v1::Layer& layer, const LayerOutput& x);
  // group_norm, and instance_norm with as many groups as channels.
  absl::StatusOr<LayerOutput> GroupNorm(const v1::Layer& layer, int64_t groups, double epsilon, bool affine,
                                        const LayerOutput& x);
  absl::StatusOr<LayerOutput> Attention(const v1::Layer& layer, const std::vector<LayerOutput>& inputs);
  // q, k and v of an attention layer: of x, which is also what they attend to, side by side in one value, by one
  // product; or three values, of x and `context`.
  absl::StatusOr<std::vector<ir::ValueId>> Projections(const v1::Layer& layer, ir::ValueId x, ir::ValueId context);
  absl::StatusOr<LayerOutput> Recurrent(const v1::Layer& layer, ir::OpKind op, const v1::RecurrentLayer& spec,
                                        const LayerOutput& x);
  // One direction of one of the stacked levels, which reads `x`: every output of its node.
  absl::StatusOr<std::vector<ir::ValueId>> RecurrentLevel(const std::string& layer, ir::OpKind op,
                                                          const v1::RecurrentLayer& spec, const std::string& suffix,
                                                          bool reverse, const LayerOutput& x);
  // bool [batch, 1, 1, 1] but for `axis`, 1 or 3, which is time: which steps count. One value for all that ask alike.
  absl::StatusOr<ir::ValueId> StepMask(ir::ValueId lengths, int64_t time, size_t axis);
  // max(lengths + more, 0) / stride: of the steps, those of a window over them. One value for all that ask alike, so
  // that sequences shortened alike have the same lengths.
  absl::StatusOr<ir::ValueId> Shortened(ir::ValueId lengths, int64_t more, int64_t stride);
  // `x`, an image whose rows are steps, with zeros in the steps that do not count; as it is where all count.
  absl::StatusOr<ir::ValueId> ZeroedPastLengths(const std::string& layer, const LayerOutput& x);
  // [batch, time, features] as an image of one channel; images as they are.
  absl::StatusOr<LayerOutput> AsImage(const std::string& layer, const LayerOutput& x);
  // An op of no layer, on lengths; its output.
  absl::StatusOr<ir::ValueId> EmitOnLengths(ir::OpKind op, const std::string& name, std::vector<ir::ValueId> inputs,
                                            ir::Attributes attributes = {});
  absl::StatusOr<LayerOutput> ActivationLayer(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Embedding(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Reshape(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> PositionalEmbedding(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Slice(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Transpose(const v1::Layer& layer, const LayerOutput& x);
  absl::StatusOr<LayerOutput> Concat(const v1::Layer& layer, const std::vector<LayerOutput>& inputs);
  // add and mul: inputs of one shape, or with `broadcast` of as many axes.
  absl::StatusOr<LayerOutput> Combine(const v1::Layer& layer, ir::OpKind op, bool broadcast,
                                      const std::vector<LayerOutput>& inputs);

  // What follows a dense or convolution layer; `y` itself for NONE.
  absl::StatusOr<ir::ValueId> Activate(const std::string& layer, ir::ValueId y, v1::Activation::Kind kind);
  // `first`: what the bias begins as.
  absl::StatusOr<ir::ValueId> BiasAndActivation(const std::string& layer, ir::ValueId y, bool bias,
                                                ir::Initializer first, v1::Activation::Kind activation);
  // A node "<layer>.<op>"; its first output.
  absl::StatusOr<ir::ValueId> Emit(ir::OpKind op, const std::string& layer, std::vector<ir::ValueId> inputs,
                                   ir::Attributes attributes, const std::string& suffix = "");
  // x w^T + bias over the last axis of `x`, whatever axes stand before it; `bias` may be -1. Node names end in
  // `suffix`.
  absl::StatusOr<ir::ValueId> Product(const std::string& layer, ir::ValueId x, ir::ValueId w, ir::ValueId bias = -1,
                                      const std::string& suffix = "");
  // A parameter over the last axis of `x`, in the order that PyTorch's flatten gives it.
  ir::ValueId AddVector(std::string name, const LayerOutput& x, ir::Initializer::Kind init);
  absl::StatusOr<ir::ValueId> Reshape(const std::string& layer, ir::ValueId x, const Shape& shape,
                                      const std::string& suffix);
  absl::Status RequireImage(ir::OpKind op, const std::string& layer, ir::ValueId x) const;

  ir::Graph* graph_;
  bool training_;
  // By embedding layer.
  std::map<std::string, ir::ValueId> tables_;
  // By lengths and axis; by lengths, addend and stride.
  std::map<std::pair<ir::ValueId, size_t>, ir::ValueId> step_masks_;
  std::map<std::tuple<ir::ValueId, int64_t, int64_t>, ir::ValueId> shortened_;
};

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_LAYERS_H_
