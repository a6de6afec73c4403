// Ops on tensors of any rank. A function's argument is first brought to where it neither grows fast nor has a pole.
#include <algorithm>
#include <numeric>
#include <utility>

#include "tests/support/random_graph/grower.h"

namespace ampd::testing {

using ir::OpKind;
using ir::ValueId;

void Grower::Activation() {
  static constexpr OpKind kOps[] = {OpKind::kRelu, OpKind::kLeakyRelu, OpKind::kElu,        OpKind::kGelu,
                                    OpKind::kSilu, OpKind::kSigmoid,   OpKind::kTanh,       OpKind::kSoftplus,
                                    OpKind::kClip, OpKind::kAbs,       OpKind::kHardSigmoid};
  const OpKind op = kOps[random_.Below(std::size(kOps))];
  ir::Attributes attributes;
  if (op == OpKind::kGelu && OneIn(2)) attributes.Set("approximate", std::string("tanh"));
  if (op == OpKind::kLeakyRelu && OneIn(2)) attributes.Set("alpha", 0.3);
  if (op == OpKind::kClip) attributes = {{"min", -0.7}, {"max", 0.6}};
  Set(op, {current_}, attributes);
}

void Grower::Unary() {
  static constexpr std::pair<OpKind, OpKind> kOps[] = {
      {OpKind::kTanh, OpKind::kExp},     {OpKind::kSigmoid, OpKind::kNeg},   {OpKind::kTanh, OpKind::kErf},
      {OpKind::kTanh, OpKind::kSin},     {OpKind::kNeg, OpKind::kCos},       {OpKind::kSoftplus, OpKind::kSqrt},
      {OpKind::kSigmoid, OpKind::kSqrt}, {OpKind::kTanh, OpKind::kZerosLike}};
  if (OneIn(3)) {  // log and 1/x of what is above 1/2
    Set(OpKind::kSigmoid, {current_});
    Set(OpKind::kAdd, {current_, Scalar(0.5)});
    return Set(OneIn(2) ? OpKind::kLog : OpKind::kReciprocal, {current_});
  }
  const auto [before, op] = kOps[random_.Below(std::size(kOps))];
  const ValueId kept = current_;
  Set(before, {current_});
  Set(op, {current_});
  if (op == OpKind::kZerosLike) Set(OpKind::kAdd, {current_, kept});
}

void Grower::Binary() {
  const ValueId other = OneIn(3) ? Parameter({shape().back()}) : Earlier();
  switch (random_.Below(6)) {
    case 0:
      return Set(OpKind::kSub, {current_, other});
    case 1:
      return Set(OneIn(2) ? OpKind::kMax : OpKind::kMin, {current_, other});
    case 2: {
      const ValueId gate = Emit(OpKind::kSigmoid, {other})[0];
      return Set(OpKind::kMul, {current_, gate});
    }
    case 3: {
      const ValueId gate = Emit(OpKind::kSigmoid, {other})[0];
      const ValueId divisor = Emit(OpKind::kAdd, {gate, Scalar(1)})[0];
      if (OneIn(2)) return Set(OpKind::kDiv, {current_, divisor});
      return Set(OpKind::kPow, {Emit(OpKind::kSoftplus, {current_})[0], divisor});
    }
    default:
      return Set(OpKind::kAdd, {current_, other});
  }
}

// By a constant, or the larger of two.
void Grower::Where() {
  const ValueId other = Earlier();
  if (OneIn(2)) return Set(OpKind::kWhere, {Constant(DType::kBool, shape(), 0, 1), current_, other});
  const ValueId greater = Emit(OpKind::kGreater, {current_, other})[0];
  Set(OpKind::kWhere, {greater, current_, other});
}

void Grower::Norm() {
  const Shape features = {shape().back()};
  const int64_t last = rank() - 1;
  switch (random_.Below(3)) {
    case 0:
      return Set(OpKind::kBatchNorm, {current_, Parameter(features), Parameter(features)}, {{"epsilon", 0.1}});
    case 1: {
      std::vector<ValueId> inputs = {current_};
      const int64_t axis = Between(1, last);
      const Shape normalized(shape().begin() + axis, shape().end());
      if (OneIn(2)) inputs.push_back(Parameter(normalized));
      if (inputs.size() == 2 && OneIn(2)) inputs.push_back(Parameter(normalized));
      return Set(OpKind::kLayerNorm, inputs, {{"axis", axis}, {"epsilon", 0.1}});
    }
    default: {
      std::vector<ValueId> inputs = {current_};
      if (OneIn(2)) inputs.push_back(Parameter(features));
      return Set(OpKind::kRmsNorm, inputs, {{"axis", last}, {"epsilon", 0.1}});
    }
  }
}

void Grower::Softmax() {
  Set(OneIn(2) ? OpKind::kSoftmax : OpKind::kLogSoftmax, {current_}, {{"axis", Between(1, rank() - 1)}});
}

// What is left of an axis, taken from (or added to) what was there.
void Grower::Reduction() {
  static constexpr OpKind kOps[] = {OpKind::kReduceMean, OpKind::kReduceSum, OpKind::kReduceMax, OpKind::kReduceMin,
                                    OpKind::kReduceProd};
  const ValueId kept = current_;
  const OpKind op = kOps[random_.Below(std::size(kOps))];
  const int64_t axis = Between(1, rank() - 1);
  if (op == OpKind::kReduceProd || op == OpKind::kReduceSum) Set(OpKind::kTanh, {current_});
  Set(op, {current_}, {{"axes", Ints{axis}}, {"keepdims", int64_t{1}}});
  Set(OneIn(2) ? OpKind::kSub : OpKind::kAdd, {kept, current_});
}

void Grower::Broadcast() {
  const Ints whole(shape().begin(), shape().end());
  const ValueId wide = Emit(OpKind::kBroadcastTo, {Parameter({shape().back()})}, {{"shape", whole}})[0];
  Set(OpKind::kAdd, {current_, wide});
}

void Grower::Transpose() {
  Ints perm(rank());
  std::iota(perm.begin(), perm.end(), 0);
  for (int64_t d = rank() - 1; d > 1; --d) std::swap(perm[d], perm[Between(1, d)]);
  Set(OpKind::kTranspose, {current_}, {{"perm", perm}});
}

void Grower::Slice() {
  Ints starts(rank(), 0), ends(shape().begin(), shape().end()), steps(rank(), 1);
  const int64_t axis = Between(1, rank() - 1), extent = shape()[axis];
  if (OneIn(3)) {
    starts[axis] = extent - 1;
    ends[axis] = -1;
    steps[axis] = -Between(1, 2);
  } else {
    starts[axis] = random_.Below(extent);
    ends[axis] = Between(starts[axis] + 1, extent);
    steps[axis] = Between(1, 2);
  }
  Set(OpKind::kSlice, {current_}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

void Grower::Concat() {
  std::vector<ValueId> parts = {current_, Earlier()};
  if (OneIn(3)) parts.push_back(current_);
  Set(OpKind::kConcat, parts, {{"axis", Between(1, rank() - 1)}});
}

void Grower::Pad() {
  const int64_t axis = Between(1, rank() - 1);
  Ints pads(2 * rank(), 0);
  ir::Attributes attributes;
  int64_t most = 2;
  if (OneIn(2)) {
    const bool reflect = OneIn(2);
    attributes.Set("mode", std::string(reflect ? "reflect" : "edge"));
    if (reflect) most = std::min(most, shape()[axis] - 1);
  } else {
    attributes.Set("value", 0.25);
  }
  pads[axis] = Between(0, most);
  pads[rank() + axis] = Between(0, most);
  attributes.Set("pads", pads);
  Set(OpKind::kPad, {current_}, attributes);
}

void Grower::Gather() {
  const int64_t axis = Between(1, rank() - 1), extent = shape()[axis];
  if (OneIn(2)) {
    return Set(OpKind::kGather, {current_, Constant(DType::kI32, {Between(1, 4)}, -extent, extent - 1)},
               {{"axis", axis}});
  }
  Set(OpKind::kGatherElements, {current_, Constant(DType::kI32, shape(), -extent, extent - 1)}, {{"axis", axis}});
}

// In two, each scaled by itself, and joined again.
void Grower::Split() {
  const int64_t axis = Between(1, rank() - 1), extent = shape()[axis];
  if (extent < 2) return Activation();
  const int64_t at = Between(1, extent - 1);
  const ValueId whole = current_;
  std::vector<ValueId> parts;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, at}, std::pair{at, extent}}) {
    Ints starts(rank(), 0), ends(graph_.type(whole).shape.begin(), graph_.type(whole).shape.end());
    starts[axis] = begin;
    ends[axis] = end;
    current_ = Emit(OpKind::kSlice, {whole}, {{"starts", starts}, {"ends", ends}, {"steps", Ints(rank(), 1)}})[0];
    Activation();
    parts.push_back(current_);
  }
  Set(OpKind::kConcat, parts, {{"axis", axis}});
}

}  // namespace ampd::testing
