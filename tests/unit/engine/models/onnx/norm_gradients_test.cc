// Norms have gradients at rows of zeros as well: PyTorch's, which are 0 there.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "engine/autodiff/differentiate.h"
#include "engine/models/onnx/import.h"
#include "engine/ops/op_def.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ampd::testing::GraphInputs;
using ampd::testing::GraphResults;

// d mean(f(x * w)^2) / dw, for x = `rows` of 4, w = {1, 2, 3, 4}; `norm` appends f to the model, from "h" to "y".
std::vector<double> GradientOf(const std::function<void(::onnx::ModelProto*)>& norm, std::vector<double> rows) {
  const int64_t count = static_cast<int64_t>(rows.size()) / 4;
  ::onnx::ModelProto m = EmptyModel(13);
  AddInput(&m, "x", {count, 4});
  *m.mutable_graph()->add_initializer() = Floats("w", {4});
  AddNode(&m, "Mul", {"x", "w"}, {"h"});
  norm(&m);
  AddNode(&m, "Mul", {"y", "y"}, {"squares"});
  SetInt(AddNode(&m, "ReduceMean", {"squares"}, {"loss"}), "keepdims", 0);
  AddOutput(&m, "loss");
  ImportOptions options;
  options.is_parameter = [](const std::string& name) { return name == "w"; };
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  const absl::StatusOr<ir::Graph> graph = autodiff::Differentiate(model->graph, model->graph.outputs.at("loss"));
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  GraphInputs in;
  in.inputs["x"] = {{count, 4}, std::move(rows)};
  in.parameters = {{{4}, {1, 2, 3, 4}}};
  return testing::RunGraphReference(*graph, in).gradients[0].data;
}

// What F.normalize becomes: the norm, cut off from below, divides.
void Normalize(::onnx::ModelProto* m) {
  *m->mutable_graph()->add_initializer() = Floats("least", {});
  m->mutable_graph()->mutable_initializer(m->graph().initializer_size() - 1)->set_float_data(0, 1e-12f);
  SetInts(AddNode(m, "ReduceL2", {"h"}, {"norm"}), "axes", {1});
  AddNode(m, "Clip", {"norm", "least"}, {"bounded"});
  AddNode(m, "Div", {"h", "bounded"}, {"y"});
}
void L2(::onnx::ModelProto* m) { SetInts(AddNode(m, "ReduceL2", {"h"}, {"y"}), "axes", {1}); }
void Lp1(::onnx::ModelProto* m) { SetInt(AddNode(m, "LpNormalization", {"h"}, {"y"}), "p", 1); }
void Lp2(::onnx::ModelProto* m) { SetInt(AddNode(m, "LpNormalization", {"h"}, {"y"}), "p", 2); }
void Mvn(::onnx::ModelProto* m) { SetInts(AddNode(m, "MeanVarianceNormalization", {"h"}, {"y"}), "axes", {1}); }

TEST(OnnxNormGradients, ARowOfZerosAddsNothing) {
  for (const auto& norm : {Normalize, L2, Lp1, Lp2, Mvn}) {
    const std::vector<double> without = GradientOf(norm, {1, -2, 0.5, 3, 2, 1, 1, -1});
    const std::vector<double> with = GradientOf(norm, {1, -2, 0.5, 3, 0, 0, 0, 0, 2, 1, 1, -1});
    ASSERT_EQ(without.size(), 4u);
    ASSERT_EQ(with.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::isfinite(without[i]));
      // The mean is over three rows instead of two.
      EXPECT_NEAR(with[i] * 3, without[i] * 2, 1e-9);
    }
  }
}

}  // namespace
}  // namespace ampd::models::onnx
