// How a random graph ends.
#include "tests/support/random_graph/grower.h"

namespace ampd::testing {

using ir::OpKind;
using ir::ValueId;

void Grower::Finish() {
  if (rank() == 3 && OneIn(2)) {
    Dense(kIndices);
    return OneIn(2) ? Ctc() : CrossEntropy();
  }
  const int64_t batch = shape()[0];
  if (rank() > 2) Reshape({batch, NumElements(shape()) / batch});
  Dense(kIndices);
  switch (random_.Below(4)) {
    case 0:
      return SoftCrossEntropy();
    case 1:
      return ElementLoss();
    default:
      return CrossEntropy();
  }
}

void Grower::Outputs(ValueId losses, ValueId weights) {
  graph_.outputs["losses"] = losses;
  if (weights >= 0 && OneIn(2)) {
    graph_.outputs["loss"] = Emit(OpKind::kNormalizedSum, {losses, weights})[0];
  } else {
    graph_.outputs["loss"] = Emit(OpKind::kReduceMean, {losses})[0];
  }
}

// A label for each row of classes.
void Grower::CrossEntropy() {
  Shape rows = shape();
  rows.pop_back();
  std::vector<ValueId> inputs = {current_, graph_.AddInput("labels", {DType::kI32, rows})};
  if (OneIn(3)) inputs.push_back(Constant(DType::kF32, {kIndices}, 0.5, 2));
  ir::Attributes attributes;
  if (OneIn(3)) attributes.Set("smoothing", 0.1);
  if (OneIn(3)) attributes.Set("ignore_index", int64_t{1});
  const std::vector<ValueId> losses = Emit(OpKind::kSoftmaxCrossEntropy, inputs, attributes);
  Outputs(losses[0], losses[1]);
}

void Grower::SoftCrossEntropy() {
  const ValueId targets = graph_.AddInput("targets", {DType::kF32, shape()});
  Outputs(Emit(OpKind::kSoftCrossEntropy, {current_, targets}, {{"smoothing", 0.1}})[0], -1);
}

void Grower::ElementLoss() {
  static constexpr OpKind kOps[] = {OpKind::kSquaredError, OpKind::kL1Loss, OpKind::kSmoothL1Loss, OpKind::kHingeLoss,
                                    OpKind::kSigmoidCrossEntropy};
  const ValueId targets = graph_.AddInput("targets", {DType::kF32, shape()});
  Outputs(Emit(kOps[random_.Below(std::size(kOps))], {current_, targets})[0], -1);
}

// Labels that may not fit into the time have no path: their loss counts as zero.
void Grower::Ctc() {
  const int64_t batch = shape()[0], time = shape()[1];
  const ValueId labels = Constant(DType::kI32, {batch, Between(1, time)}, 1, kIndices - 1);
  const int64_t most = graph_.type(labels).shape[1];
  const ValueId times = Constant(DType::kI32, {batch}, 1, static_cast<double>(time));
  const ValueId lengths = Constant(DType::kI32, {batch}, 0, static_cast<double>(most));
  Outputs(Emit(OpKind::kCtcLoss, {current_, labels, times, lengths}, {{"zero_infinity", int64_t{1}}})[0], -1);
}

}  // namespace ampd::testing
