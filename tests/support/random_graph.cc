#include "tests/support/random_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/ops/op_def.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using ir::ValueId;
using Ints = std::vector<int64_t>;

constexpr int64_t kClasses = 5;

class Grower {
 public:
  explicit Grower(uint64_t seed) : random_(seed) {
    const Shape shape = {2 + random_.Below(3), 3 + random_.Below(5), 3 + random_.Below(5), 1 + random_.Below(4)};
    current_ = graph_.AddInput("x", {DType::kF32, shape});
    seen_.push_back(current_);
  }

  ir::Graph Grow(int nodes) {
    while (static_cast<int>(graph_.nodes.size()) < nodes) {
      Step();
      seen_.push_back(current_);
    }
    Finish();
    return std::move(graph_);
  }

 private:
  const Shape& shape() const { return graph_.type(current_).shape; }
  std::string NextName() { return absl::StrCat("n", count_++); }

  std::vector<ValueId> Emit(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes = {}) {
    const std::string layer = NextName();
    auto values = ops::Emit(&graph_, {.op = op,
                                      .name = absl::StrCat(layer, ".", ir::OpName(op)),
                                      .layer = layer,
                                      .inputs = std::move(inputs),
                                      .attributes = std::move(attributes)});
    EXPECT_TRUE(values.ok()) << values.status();
    return *std::move(values);
  }

  ValueId Parameter(const Shape& shape) {
    return graph_.AddParameter({.name = absl::StrCat("p", graph_.parameters.size()), .type = {DType::kF32, shape}});
  }

  void Step() {
    switch (random_.Below(8)) {
      case 0:
        return Conv();
      case 1:
        return BatchNorm();
      case 2:
        return Pool();
      case 3:
        current_ = Emit(OpKind::kBiasAdd, {current_, Parameter({shape().back()})})[0];
        return;
      case 4:
        current_ = Emit(OpKind::kDropout, {current_}, {{"rate", 0.25}, {"stream", int64_t{count_}}})[0];
        return;
      case 5:
        return AddEarlier();
      default:
        current_ = Emit(OpKind::kRelu, {current_})[0];
    }
  }

  void Conv() {
    const int64_t kernel = 1 + random_.Below(3), stride = 1 + random_.Below(2);
    const Shape filter = {1 + random_.Below(9), kernel, kernel, shape().back()};
    const Ints pads = {kernel / 2, kernel / 2, kernel / 2, kernel / 2};
    current_ =
        Emit(OpKind::kConv2d, {current_, Parameter(filter)}, {{"strides", Ints{stride, stride}}, {"pads", pads}})[0];
  }

  void BatchNorm() {
    const Shape channels = {shape().back()};
    current_ = Emit(OpKind::kBatchNorm, {current_, Parameter(channels), Parameter(channels)}, {{"epsilon", 1e-3}})[0];
  }

  void Pool() {
    const OpKind op = random_.Below(2) == 0 ? OpKind::kMaxPool2d : OpKind::kAvgPool2d;
    current_ = Emit(op, {current_}, {{"size", Ints{2, 2}}, {"strides", Ints{1, 1}}, {"pads", Ints{0, 0, 1, 1}}})[0];
  }

  // A residual: any earlier value of the same shape.
  void AddEarlier() {
    std::vector<ValueId> alike;
    for (ValueId v : seen_) {
      if (graph_.type(v).shape == shape()) alike.push_back(v);
    }
    const ValueId other = alike[random_.Below(static_cast<int64_t>(alike.size()))];
    current_ = Emit(OpKind::kAdd, {current_, other})[0];
  }

  void Finish() {
    const int64_t batch = shape()[0];
    const int64_t features = NumElements(shape()) / batch;
    current_ = Emit(OpKind::kReshape, {current_}, {{"shape", Ints{batch, features}}})[0];
    const ValueId w = Parameter({kClasses, features});
    current_ = Emit(OpKind::kMatmul, {current_, w}, {{"transpose_b", int64_t{1}}})[0];
    const ValueId labels = graph_.AddInput("labels", {DType::kI32, {batch}});
    const ValueId losses = Emit(OpKind::kSoftmaxCrossEntropy, {current_, labels})[0];
    graph_.outputs = {{"losses", losses}, {"loss", Emit(OpKind::kReduceMean, {losses})[0]}};
  }

  Random random_;
  ir::Graph graph_;
  ValueId current_ = -1;
  std::vector<ValueId> seen_;
  int count_ = 0;
};

// Small enough that a long graph neither vanishes nor explodes.
RefTensor Draw(Random* random, const ir::TensorType& type, double bound) {
  RefTensor t = Filled(type.shape);
  for (double& v : t.data) v = RoundToDType(random->Uniform(-bound, bound), DType::kF32);
  return t;
}

}  // namespace

ir::Graph RandomForwardGraph(uint64_t seed, int nodes) { return Grower(seed).Grow(nodes); }

GraphInputs RandomGraphInputs(const ir::Graph& graph, uint64_t seed) {
  Random random(seed);
  GraphInputs in;
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    RefTensor& t = in.inputs[value.name] = Draw(&random, value.type, 1);
    if (value.type.dtype != DType::kI32) continue;
    for (double& v : t.data) v = static_cast<double>(random.Below(kClasses));
  }
  for (const ir::Persistent& p : graph.parameters) {
    const int64_t fan_in = p.type.shape.size() < 2 ? 1 : NumElements(p.type.shape) / p.type.shape[0];
    in.parameters.push_back(Draw(&random, p.type, std::sqrt(3.0 / static_cast<double>(fan_in))));
  }
  in.step = {.seed = seed, .attempted_step = 3, .loss_seed = 1};
  return in;
}

}  // namespace ampd::testing
