#include "engine/models/multibox.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/box_overlap.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;
using Ints = std::vector<int64_t>;

constexpr int64_t kOffsets = 4;

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("[multibox] ", what, ", node loss"));
}

// Square roots of the ratios keep the areas alike.
void AppendCell(const v1::PriorMap& map, float x, float y, std::vector<float>* priors) {
  for (const double ratio : map.ratios()) {
    const double root = std::sqrt(ratio);
    priors->insert(priors->end(),
                   {x, y, static_cast<float>(map.scale() * root), static_cast<float>(map.scale() / root)});
  }
  if (!map.has_extra_scale()) return;
  const auto side = static_cast<float>(map.extra_scale());
  priors->insert(priors->end(), {x, y, side, side});
}

class MultiboxBuilder {
 public:
  MultiboxBuilder(const v1::MultiboxLoss& loss, ValueId prediction, ValueId targets, ir::Graph* graph)
      : loss_(loss), prediction_(prediction), targets_(targets), graph_(graph) {}

  absl::StatusOr<ValueId> Build() {
    auto priors = std::make_shared<Tensor>(PriorsOf(loss_));
    AMPD_RETURN_IF_ERROR(Check(priors->shape()[0]));
    const ir::Attributes matching{{"threshold", loss_.threshold()},
                                  {"center_variance", loss_.center_variance()},
                                  {"size_variance", loss_.size_variance()}};
    AMPD_ASSIGN_OR_RETURN(
        const std::vector<ValueId> matched,
        EmitAll(OpKind::kMatchPriors, {graph_->AddConstant("loss.priors", std::move(priors)), targets_}, matching, ""));
    AMPD_ASSIGN_OR_RETURN(const ValueId share, Emit(OpKind::kReduceMax, {matched[2]}, {{"axes", Ints{1}}}));
    AMPD_ASSIGN_OR_RETURN(const ValueId confidence, Confidence(matched[0]));
    AMPD_ASSIGN_OR_RETURN(const ValueId of_classes, Emit(OpKind::kMul, {confidence, share}, {}, "_confidence"));
    AMPD_ASSIGN_OR_RETURN(const ValueId of_places, Location(matched[1], matched[2]));
    return Emit(OpKind::kAdd, {of_classes, of_places}, {});
  }

 private:
  const Shape& shape() const { return graph_->type(prediction_).shape; }

  absl::Status Check(int64_t priors) const {
    if (shape().size() != 3 || shape()[1] != priors || shape()[2] <= kOffsets + 1) {
      return Wrong(absl::StrCat("needs [batch, ", priors, " priors, 5 + classes] from the last layer, has ",
                                ShapeString(shape())));
    }
    const Shape& targets = graph_->type(targets_).shape;
    if (targets[1] % ops::kBoxNumbers == 0) return absl::OkStatus();
    return Wrong(absl::StrCat("needs five numbers for each box as targets, the data has ", targets[1], " a sample"));
  }

  // Sums of the cross-entropy of the matched priors and of the hardest of the others, by sample.
  absl::StatusOr<ValueId> Confidence(ValueId labels) {
    AMPD_ASSIGN_OR_RETURN(const ValueId logits, Cut(kOffsets, shape()[2], "_logits"));
    AMPD_ASSIGN_OR_RETURN(const ValueId surprises, Emit(OpKind::kSoftmaxCrossEntropy, {logits, labels}, {}, "_all"));
    AMPD_ASSIGN_OR_RETURN(const ValueId chosen,
                          Emit(OpKind::kHardNegatives, {surprises, labels}, {{"ratio", loss_.negative_ratio()}}));
    AMPD_ASSIGN_OR_RETURN(const ValueId losses, Emit(OpKind::kSoftmaxCrossEntropy, {logits, chosen}, {}));
    return Emit(OpKind::kReduceSum, {losses}, {{"axes", Ints{1}}}, "_confidence");
  }

  // Means of the matched priors' smooth L1 losses, by sample.
  absl::StatusOr<ValueId> Location(ValueId offsets, ValueId shares) {
    const int64_t batch = shape()[0], priors = shape()[1];
    const Ints rows = {batch * priors, kOffsets};
    AMPD_ASSIGN_OR_RETURN(const ValueId cut, Cut(0, kOffsets, "_offsets"));
    AMPD_ASSIGN_OR_RETURN(const ValueId predicted, Emit(OpKind::kReshape, {cut}, {{"shape", rows}}, "_predicted"));
    AMPD_ASSIGN_OR_RETURN(const ValueId wanted, Emit(OpKind::kReshape, {offsets}, {{"shape", rows}}, "_wanted"));
    AMPD_ASSIGN_OR_RETURN(const ValueId means, Emit(OpKind::kSmoothL1Loss, {predicted, wanted}, {}));
    AMPD_ASSIGN_OR_RETURN(const ValueId by_prior,
                          Emit(OpKind::kReshape, {means}, {{"shape", Ints{batch, priors}}}, "_priors"));
    AMPD_ASSIGN_OR_RETURN(const ValueId weighed, Emit(OpKind::kMul, {by_prior, shares}, {}, "_shares"));
    AMPD_ASSIGN_OR_RETURN(const ValueId sums, Emit(OpKind::kReduceSum, {weighed}, {{"axes", Ints{1}}}, "_location"));
    // The op gives the mean over a prior's four numbers, the paper has their sum.
    auto weight = std::make_shared<Tensor>(DType::kF32, Shape{1});
    weight->as<float>()[0] = static_cast<float>(kOffsets * loss_.location_weight());
    return Emit(OpKind::kMul, {sums, graph_->AddConstant("loss.location_weight", std::move(weight))}, {}, "_location");
  }

  absl::StatusOr<ValueId> Cut(int64_t begin, int64_t end, const std::string& suffix) {
    return Emit(OpKind::kSlice, {prediction_},
                {{"starts", Ints{0, 0, begin}}, {"ends", Ints{shape()[0], shape()[1], end}}, {"steps", Ints{1, 1, 1}}},
                suffix);
  }

  absl::StatusOr<std::vector<ValueId>> EmitAll(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes,
                                               const std::string& suffix) {
    return ops::Emit(graph_, {.op = op,
                              .name = absl::StrCat("loss.", ir::OpName(op), suffix),
                              .inputs = std::move(inputs),
                              .attributes = std::move(attributes),
                              .stage = ir::Stage::kLoss});
  }

  absl::StatusOr<ValueId> Emit(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes,
                               const std::string& suffix = "") {
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                          EmitAll(op, std::move(inputs), std::move(attributes), suffix));
    return outputs[0];
  }

  const v1::MultiboxLoss& loss_;
  const ValueId prediction_;
  const ValueId targets_;
  ir::Graph* graph_;
};

}  // namespace

Tensor PriorsOf(const v1::MultiboxLoss& loss) {
  std::vector<float> priors;
  for (const v1::PriorMap& map : loss.maps()) {
    for (int64_t row = 0; row < map.height(); ++row) {
      for (int64_t column = 0; column < map.width(); ++column) {
        AppendCell(map, (static_cast<float>(column) + 0.5f) / static_cast<float>(map.width()),
                   (static_cast<float>(row) + 0.5f) / static_cast<float>(map.height()), &priors);
      }
    }
  }
  Tensor tensor(DType::kF32, {static_cast<int64_t>(priors.size() / kOffsets), kOffsets});
  std::copy(priors.begin(), priors.end(), tensor.as<float>().begin());
  return tensor;
}

absl::StatusOr<ValueId> AddMultiboxLosses(const v1::MultiboxLoss& loss, ValueId prediction, ValueId targets,
                                          ir::Graph* graph) {
  return MultiboxBuilder(loss, prediction, targets, graph).Build();
}

}  // namespace ampd::models
