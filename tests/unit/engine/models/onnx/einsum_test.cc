// Einsum as graphs: results by hand, the operations that it becomes, equations that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ampd::testing::GraphInputs;
using ::testing::ElementsAre;

::onnx::ModelProto EinsumModel(const std::string& equation, const std::vector<std::vector<int64_t>>& shapes) {
  ::onnx::ModelProto m = EmptyModel();
  std::vector<std::string> names;
  for (const std::vector<int64_t>& shape : shapes) {
    names.push_back("x" + std::to_string(names.size()));
    AddInput(&m, names.back(), shape);
  }
  auto* attribute = AddNode(&m, "Einsum", names, {"y"})->add_attribute();
  attribute->set_name("equation");
  attribute->set_type(::onnx::AttributeProto::STRING);
  attribute->set_s(equation);
  AddOutput(&m, "y");
  return m;
}

struct Result {
  Shape shape;
  std::vector<double> data;
  std::vector<std::string> ops;
};

// Operands are 1, 2, 3, ...
Result RunEinsum(const std::string& equation, const std::vector<std::vector<int64_t>>& shapes) {
  const absl::StatusOr<ImportedModel> model = Import(EinsumModel(equation, shapes));
  EXPECT_TRUE(model.ok()) << equation << model.status();
  if (!model.ok()) return {};
  GraphInputs in;
  for (size_t i = 0; i < shapes.size(); ++i) {
    testing::RefTensor x = testing::Filled({shapes[i].begin(), shapes[i].end()});
    double next = 1;
    for (double& v : x.data) v = next++;
    in.inputs["x" + std::to_string(i)] = x;
  }
  Result result;
  for (const ir::Node& node : model->graph.nodes) result.ops.emplace_back(ir::OpName(node.op));
  const testing::RefTensor y = testing::RunGraphReference(model->graph, in).outputs.at("y");
  result.shape = y.shape;
  result.data = y.data;
  return result;
}

TEST(OnnxEinsum, ProductsAreMatrixProducts) {
  const Result product = RunEinsum("ij,jk->ik", {{2, 2}, {2, 2}});
  EXPECT_THAT(product.data, ElementsAre(7, 10, 15, 22));
  EXPECT_THAT(product.ops, ElementsAre("matmul"));
  // Queries and keys of attention: nothing is moved that a product reads as it is.
  const Result scores = RunEinsum("bhqd,bhkd->bhqk", {{2, 3, 4, 5}, {2, 3, 6, 5}});
  EXPECT_THAT(scores.shape, ElementsAre(2, 3, 4, 6));
  EXPECT_THAT(scores.ops, ElementsAre("matmul"));
  EXPECT_THAT(RunEinsum("oi,bi->bo", {{2, 2}, {1, 2}}).data, ElementsAre(5, 11));
  EXPECT_THAT(RunEinsum("i,i->", {{3}, {3}}).data, ElementsAre(14));
}

TEST(OnnxEinsum, WithoutASharedSumItIsElementwise) {
  const Result outer = RunEinsum("i,j->ij", {{2}, {2}});
  EXPECT_THAT(outer.data, ElementsAre(1, 2, 2, 4));
  EXPECT_THAT(outer.ops, ElementsAre("reshape", "reshape", "mul"));
  EXPECT_THAT(RunEinsum("ij,ij->ij", {{2, 2}, {2, 2}}).data, ElementsAre(1, 4, 9, 16));
}

TEST(OnnxEinsum, OneOperandIsTurnedSummedAndCutAlongItsDiagonal) {
  EXPECT_THAT(RunEinsum("ij->ji", {{2, 3}}).data, ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(RunEinsum("ij->i", {{2, 3}}).data, ElementsAre(6, 15));
  EXPECT_THAT(RunEinsum("ba", {{2, 3}}).shape, ElementsAre(3, 2));  // by the alphabet
  EXPECT_THAT(RunEinsum("ii->i", {{3, 3}}).data, ElementsAre(1, 5, 9));
  EXPECT_THAT(RunEinsum("ii", {{3, 3}}).data, ElementsAre(15));
  EXPECT_THAT(RunEinsum("iji -> j", {{2, 2, 2}}).data, ElementsAre(7, 11));
}

TEST(OnnxEinsum, EllipsesAndExtentsOfOneAreRepeated) {
  EXPECT_THAT(RunEinsum("...ij,...jk->...ik", {{3, 2, 2}, {2, 2}}).shape, ElementsAre(3, 2, 2));
  EXPECT_THAT(RunEinsum("i...->...", {{2, 3}}).data, ElementsAre(5, 7, 9));
  EXPECT_THAT(RunEinsum("ij,jk->ik", {{2, 1}, {3, 1}}).data, ElementsAre(6, 12));
  EXPECT_THAT(RunEinsum("ij,jk,kl->il", {{1, 2}, {2, 2}, {2, 1}}).data, ElementsAre(27));
}

TEST(OnnxEinsum, TakesSixtyFourOperands) {
  const auto status = [](int operands) {
    std::string equation = "i";
    for (int i = 1; i < operands; ++i) equation += ",i";
    const std::vector<std::vector<int64_t>> shapes(static_cast<size_t>(operands), {2});
    return Import(EinsumModel(equation + "->i", shapes)).status();
  };
  EXPECT_TRUE(status(64).ok()) << status(64);
  EXPECT_EQ(status(65).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status(65).message()), ::testing::HasSubstr("[Einsum] 65 operands, at most 64"));
}

TEST(OnnxEinsum, RefusesEquationsThatDoNotFit) {
  const auto code = [](const std::string& equation, const std::vector<std::vector<int64_t>>& shapes) {
    return Import(EinsumModel(equation, shapes)).status().code();
  };
  for (const char* equation :
       {"", "ij,jk", "i->i", "ij->k", "ij->ii", "i1->i", "ij->i->j", "ijk...->i", ".ij->i", "......->", "i.j->i"}) {
    EXPECT_EQ(code(equation, {{2, 3}}), absl::StatusCode::kInvalidArgument) << equation;
  }
  EXPECT_EQ(code("ij,jk->ik", {{2, 3}, {2, 3}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("ii->i", {{2, 3}}), absl::StatusCode::kInvalidArgument);
  ::onnx::ModelProto m = EinsumModel("i->", {});
  AddInput(&m, "n", {2}, Proto::INT64);
  m.mutable_graph()->mutable_node(0)->add_input("n");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ampd::models::onnx
