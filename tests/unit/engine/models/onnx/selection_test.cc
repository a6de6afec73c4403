// TopK, ArgMax and ArgMin as graphs: places and elements, the gradient by the elements, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/autodiff/differentiate.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ampd::testing::GraphInputs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

::onnx::ModelProto Choice(const std::string& op, int64_t k = 0) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 4});
  if (op == "TopK") {
    *m.mutable_graph()->add_initializer() = Ints("k", {k});
    AddNode(&m, op, {"x", "k"}, {"values", "y"});
    AddOutput(&m, "values");
  } else {
    SetInt(AddNode(&m, op, {"x"}, {"y"}), "axis", 1);
  }
  AddOutput(&m, "y");
  return m;
}

std::map<std::string, testing::RefTensor> ResultsOf(const ::onnx::ModelProto& m, std::vector<double> rows) {
  const absl::StatusOr<ImportedModel> model = Import(m);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  GraphInputs in;
  in.inputs["x"] = {{2, 4}, std::move(rows)};
  return testing::RunGraphReference(model->graph, in).outputs;
}

TEST(OnnxSelection, FindsTheFirstOfTheLargest) {
  const std::vector<double> rows = {3, 5, 5, 1, -2, -INFINITY, -INFINITY, -7};
  auto results = ResultsOf(Choice("TopK", 3), rows);
  EXPECT_THAT(results.at("values").data, ElementsAre(5, 5, 3, -2, -7, -INFINITY));
  EXPECT_THAT(results.at("y").data, ElementsAre(1, 2, 0, 0, 3, 1));
  // What was found is not found again among infinities.
  EXPECT_THAT(ResultsOf(Choice("TopK", 4), rows).at("y").data, ElementsAre(1, 2, 0, 3, 0, 3, 1, 2));
  ::onnx::ModelProto smallest = Choice("TopK", 2);
  SetInt(smallest.mutable_graph()->mutable_node(0), "largest", 0);
  results = ResultsOf(smallest, rows);
  EXPECT_THAT(results.at("values").data, ElementsAre(1, 3, -INFINITY, -INFINITY));
  EXPECT_THAT(results.at("y").data, ElementsAre(3, 0, 1, 2));
}

TEST(OnnxSelection, ArgumentsHaveOnePlaceOrNoAxis) {
  const std::vector<double> rows = {3, 5, 5, 1, -2, 4, 0, -2};
  const auto most = ResultsOf(Choice("ArgMax"), rows).at("y");
  EXPECT_THAT(most.shape, ElementsAre(2, 1));
  EXPECT_THAT(most.data, ElementsAre(1, 1));
  ::onnx::ModelProto least = Choice("ArgMin");
  SetInt(least.mutable_graph()->mutable_node(0), "keepdims", 0);
  EXPECT_THAT(ResultsOf(least, rows).at("y").shape, ElementsAre(2));
  EXPECT_THAT(ResultsOf(least, rows).at("y").data, ElementsAre(3, 0));
  SetInt(least.mutable_graph()->mutable_node(0), "select_last_index", 1);
  EXPECT_THAT(ResultsOf(least, rows).at("y").data, ElementsAre(3, 3));
}

TEST(OnnxSelection, GradientsGoToWhatWasFound) {
  ::onnx::ModelProto m = Choice("TopK", 2);
  m.mutable_graph()->mutable_node(0)->set_input(0, "hidden");
  *m.mutable_graph()->add_initializer() = Floats("w", {4});
  AddNode(&m, "Add", {"x", "w"}, {"hidden"});
  m.mutable_graph()->mutable_node()->SwapElements(0, 1);
  SetInt(AddNode(&m, "ReduceSum", {"values"}, {"loss"}), "keepdims", 0);
  m.mutable_graph()->clear_output();
  AddOutput(&m, "loss");
  ImportOptions options;
  options.is_parameter = [](const std::string& name) { return name == "w"; };
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<ir::Graph> graph = autodiff::Differentiate(model->graph, model->graph.outputs.at("loss"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  GraphInputs in;
  in.inputs["x"] = {{2, 4}, {4, 1, 0, 9, 5, 5, 0, 0}};
  in.parameters = {{{4}, {0, 0, 0, 0}}};
  in.step.loss_seed = 1;
  EXPECT_THAT(testing::RunGraphReference(*graph, in).gradients[0].data, ElementsAre(2, 1, 0, 1));
}

TEST(OnnxSelection, RefusesManyRoundsAndOddNumbers) {
  const auto status = [](const ::onnx::ModelProto& m) { return Import(m).status(); };
  for (const int64_t k : {0, -1, 5}) EXPECT_EQ(status(Choice("TopK", k)).code(), absl::StatusCode::kInvalidArgument);
  ::onnx::ModelProto many = Choice("TopK", 17);
  many.mutable_graph()->clear_input();
  AddInput(&many, "x", {2, 40});
  EXPECT_EQ(status(many).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status(many).message()), HasSubstr("K of 17, at most 16"));
}

}  // namespace
}  // namespace ampd::models::onnx
