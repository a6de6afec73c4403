#include "tests/support/random_graph/grower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/ops/op_def.h"
#include "tests/support/random_graph.h"

namespace ampd::testing {

using ir::OpKind;
using ir::ValueId;

Grower::Grower(uint64_t seed) : random_(seed) {
  const int64_t batch = Between(1, 4);
  switch (random_.Below(4)) {
    case 0: {
      current_ = graph_.AddInput("ids", {DType::kI32, {batch, Between(1, 5)}});
      Embedding();
      break;
    }
    case 1:
      current_ = graph_.AddInput("x", {DType::kF32, {batch, Between(1, 6), Between(1, 7)}});
      break;
    default:
      current_ = graph_.AddInput("x", {DType::kF32, {batch, Between(1, 7), Between(1, 7), Between(1, 5)}});
  }
  seen_.push_back(current_);
}

ir::Graph Grower::Grow(int nodes) {
  while (static_cast<int>(graph_.nodes.size()) < nodes && !::testing::Test::HasFatalFailure()) {
    Step();
    Shrink();
    seen_.push_back(current_);
  }
  Finish();
  return std::move(graph_);
}

std::vector<ValueId> Grower::Emit(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes) {
  const std::string layer = absl::StrCat("n", count_++);
  auto values = ops::Emit(&graph_, {.op = op,
                                    .name = absl::StrCat(layer, ".", ir::OpName(op)),
                                    .layer = layer,
                                    .inputs = std::move(inputs),
                                    .attributes = std::move(attributes)});
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? *std::move(values) : std::vector<ValueId>(5, current_);
}

void Grower::Set(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes) {
  current_ = Emit(op, std::move(inputs), std::move(attributes))[0];
}

ValueId Grower::Parameter(const Shape& shape) {
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const ir::Value& value = graph_.values[v];
    if (value.kind != ir::ValueKind::kParameter || value.type.shape != shape) continue;
    if (OneIn(3)) return static_cast<ValueId>(v);
  }
  return graph_.AddParameter({.name = absl::StrCat("p", graph_.parameters.size()), .type = {DType::kF32, shape}});
}

ValueId Grower::Constant(DType dtype, const Shape& shape, double low, double high) {
  RefTensor t = Filled(shape);
  for (double& v : t.data) {
    v = IsFloat(dtype) ? random_.Uniform(low, high)
                       : static_cast<double>(Between(static_cast<int64_t>(low), static_cast<int64_t>(high)));
  }
  return graph_.AddConstant(absl::StrCat("c", count_++), std::make_shared<Tensor>(ToTensor(t, dtype)));
}

ValueId Grower::Scalar(double value) { return Constant(DType::kF32, {}, value, value); }

ValueId Grower::Earlier() {
  std::vector<ValueId> alike = {current_};
  for (ValueId v : seen_) {
    if (graph_.type(v).shape == shape() && graph_.type(v).dtype == DType::kF32) alike.push_back(v);
  }
  return alike[random_.Below(static_cast<int64_t>(alike.size()))];
}

void Grower::Dense(int64_t units) {
  Set(OpKind::kMatmul, {current_, Parameter({units, shape().back()})}, {{"transpose_b", int64_t{1}}});
}

void Grower::Reshape(Ints to) { Set(OpKind::kReshape, {current_}, {{"shape", std::move(to)}}); }

void Grower::Shrink() {
  constexpr int64_t kMostElements = 1500;
  if (NumElements(shape()) <= kMostElements) return;
  const Shape x = shape();
  Ints ends(x.begin(), x.end());
  for (size_t d = 1; d < ends.size(); ++d) ends[d] = std::min<int64_t>(ends[d], 5);
  Set(OpKind::kSlice, {current_}, {{"starts", Ints(ends.size(), 0)}, {"ends", ends}, {"steps", Ints(ends.size(), 1)}});
}

void Grower::Step() {
  if (OneIn(12)) DeadNode();
  if (rank() == 4 && OneIn(2)) return ImageStep();
  if (rank() == 3 && OneIn(2)) return SequenceStep();
  using Method = void (Grower::*)();
  static constexpr Method kSteps[] = {
      &Grower::Activation, &Grower::Activation, &Grower::Unary, &Grower::Binary,  &Grower::Binary,
      &Grower::Where,      &Grower::Norm,       &Grower::Norm,  &Grower::Softmax, &Grower::Reduction,
      &Grower::Broadcast,  &Grower::Transpose,  &Grower::Slice, &Grower::Concat,  &Grower::Pad,
      &Grower::Gather,     &Grower::Split,      nullptr,        nullptr};
  const Method step = kSteps[random_.Below(std::size(kSteps))];
  if (step != nullptr) return (this->*step)();
  if (OneIn(2)) return Set(OpKind::kBiasAdd, {current_, Parameter({shape().back()})});
  if (OneIn(2)) return Dense(Between(1, 9));
  Set(OpKind::kDropout, {current_}, {{"rate", 0.25}, {"stream", int64_t{count_}}});
}

void Grower::ImageStep() {
  const Shape x = shape();
  switch (random_.Below(9)) {
    case 0:
      return ConvTranspose();
    case 1:
      return MaxPool();
    case 2:
      return AvgPool();
    case 3:
      return GroupNorm();
    case 4:
      return OneIn(2) ? Reshape({x[0], x[1], x[2] * x[3]}) : Reshape({x[0], x[1] * x[2], x[3]});
    case 5:
      if (OneIn(3)) return Set(OpKind::kGlobalAvgPool, {current_});
      [[fallthrough]];
    default:
      return Conv();
  }
}

void Grower::SequenceStep() {
  const Shape x = shape();
  switch (random_.Below(6)) {
    case 0:
      return Recurrent(OpKind::kLstm);
    case 1:
      return Recurrent(OpKind::kGru);
    case 2:
      return Reshape({x[0], x[1], 1, x[2]});
    case 3:
      return Dense(Between(1, 9));
    default:
      return Attention();
  }
}

void Grower::DeadNode() {
  const ValueId kept = current_;
  Activation();
  current_ = kept;
}

ir::Graph RandomForwardGraph(uint64_t seed, int nodes) { return Grower(seed).Grow(nodes); }

namespace {

// Small enough that a long graph neither vanishes nor explodes.
RefTensor Draw(Random* random, const ir::TensorType& type, double bound) {
  RefTensor t = Filled(type.shape);
  for (double& v : t.data) v = RoundToDType(random->Uniform(-bound, bound), DType::kF32);
  return t;
}

}  // namespace

GraphInputs RandomGraphInputs(const ir::Graph& graph, uint64_t seed) {
  Random random(seed);
  GraphInputs in;
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    RefTensor& t = in.inputs[value.name] = Draw(&random, value.type, 1);
    if (value.type.dtype != DType::kI32) continue;
    for (double& v : t.data) v = static_cast<double>(random.Below(kIndices));
  }
  for (const ir::Persistent& p : graph.parameters) {
    const int64_t fan_in = p.type.shape.size() < 2 ? 1 : NumElements(p.type.shape) / p.type.shape[0];
    in.parameters.push_back(Draw(&random, p.type, std::sqrt(3.0 / static_cast<double>(fan_in))));
  }
  for (const ir::Persistent& s : graph.states) {
    in.states.push_back(Filled(s.type.shape));
    if (absl::EndsWith(s.name, ".scale")) in.states.back().data[0] = std::ldexp(1.0, static_cast<int>(random.Below(6)));
  }
  in.step = {.seed = seed, .attempted_step = 3, .loss_seed = 1};
  return in;
}

}  // namespace ampd::testing
