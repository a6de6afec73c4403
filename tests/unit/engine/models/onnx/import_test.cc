// What graphs models become: shapes known at import, parameters, layouts, functions and branches.
#include "engine/models/onnx/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/ops/op_def.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int CountOps(const ir::Graph& graph, absl::string_view op) {
  int count = 0;
  for (const ir::Node& node : graph.nodes) count += ir::OpName(node.op) == op;
  return count;
}

TEST(OnnxImport, ShapeArithmeticLeavesNoNodes) {
  // Flattens all but the first axis by way of Shape, Gather, Unsqueeze and Concat, as exporters write it.
  ::onnx::ModelProto m = EmptyModel(12);
  AddInput(&m, "x", {-1, 3, 4});
  *m.mutable_graph()->add_initializer() = Ints("minus_one", {-1});
  Proto zero = Ints("zero", {0});
  zero.clear_dims();
  *m.mutable_graph()->add_initializer() = zero;
  AddNode(&m, "Shape", {"x"}, {"s"});
  AddNode(&m, "Gather", {"s", "zero"}, {"n"});
  SetInts(AddNode(&m, "Unsqueeze", {"n"}, {"n1"}), "axes", {0});
  SetInt(AddNode(&m, "Concat", {"n1", "minus_one"}, {"to"}), "axis", 0);
  AddNode(&m, "Reshape", {"x", "to"}, {"flat"});
  AddNode(&m, "Relu", {"flat"}, {"y"});
  AddOutput(&m, "y");
  AddOutput(&m, "to");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kFailedPrecondition);
  ImportOptions options;
  options.input_shapes["x"] = {5, 3, 4};
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  ASSERT_TRUE(model.ok()) << model.status();
  const ir::Graph& g = model->graph;
  EXPECT_THAT(g.type(g.outputs.at("y")).shape, ElementsAre(5, 12));
  EXPECT_EQ(g.nodes.size(), 2u);  // reshape, relu
  const ir::Value& to = g.values[g.outputs.at("to")];
  ASSERT_EQ(to.kind, ir::ValueKind::kConstant);
  EXPECT_THAT(to.data->as<int64_t>(), ElementsAre(5, -1));
}

// Slice-13: a start is clamped to [0, extent - 1] and an end to [-1, extent - 1] where the step is negative, to
// [0, extent] where it is not.
TEST(OnnxImport, SlicesAreClampedAsTheirSpecificationSays) {
  const int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  struct Case {
    int64_t start, end, step;
    std::vector<int64_t> expected;
  };
  const std::vector<Case> cases = {
      {-100, least, -1, {0}},           {-100, -200, -2, {0}},        {-100, 0, -1, {}},    {-5, least, -1, {0}},
      {-4, least, -1, {1, 0}},          {most, least, -2, {4, 2, 0}}, {100, 2, -1, {4, 3}}, {-1, -100, -3, {4, 1}},
      {-100, most, 1, {0, 1, 2, 3, 4}}, {-100, 2, 1, {0, 1}},         {100, most, 1, {}},   {-2, most, 1, {3, 4}},
  };
  for (const Case& c : cases) {
    ::onnx::ModelProto m = EmptyModel();
    auto* known = m.mutable_graph();
    *known->add_initializer() = Ints("x", {0, 1, 2, 3, 4});
    *known->add_initializer() = Ints("start", {c.start});
    *known->add_initializer() = Ints("end", {c.end});
    *known->add_initializer() = Ints("axis", {0});
    *known->add_initializer() = Ints("step", {c.step});
    AddNode(&m, "Slice", {"x", "start", "end", "axis", "step"}, {"part"});
    // So that there is a constant in the graph when nothing is left of x.
    *known->add_initializer() = Ints("mark", {9});
    SetInt(AddNode(&m, "Concat", {"part", "mark"}, {"y"}), "axis", 0);
    AddOutput(&m, "y");
    const auto imported = Import(m);
    ASSERT_TRUE(imported.ok()) << imported.status();
    std::vector<int64_t> expected = c.expected;
    expected.push_back(9);
    const auto values = imported->graph.values[imported->graph.outputs.at("y")].data->as<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(values.begin(), values.end()), expected) << c.start << ":" << c.end << ":" << c.step;
  }
}

TEST(OnnxImport, AShapeThatIsAnInputHasToBeGiven) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 6});
  AddInput(&m, "shape", {2}, Proto::INT64);
  *m.mutable_graph()->add_initializer() = Ints("one", {1});
  AddNode(&m, "Mul", {"shape", "one"}, {"same"});
  AddNode(&m, "Reshape", {"x", "same"}, {"y"});
  AddOutput(&m, "y");
  auto value = std::make_shared<Tensor>(DType::kI64, Shape{2});
  value->as<int64_t>()[0] = 3;
  value->as<int64_t>()[1] = 4;
  ImportOptions options;
  options.input_values["shape"] = value;
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("y")).shape, ElementsAre(3, 4));
}

TEST(OnnxImport, ParametersKeepNamesAndFiltersTheirLayout) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {1, 2, 4, 4});
  *m.mutable_graph()->add_initializer() = Floats("conv.weight", {3, 2, 2, 2});
  *m.mutable_graph()->add_initializer() = Floats("fc.weight", {3, 5});
  AddNode(&m, "Conv", {"x", "conv.weight"}, {"c"});
  AddNode(&m, "GlobalAveragePool", {"c"}, {"p"});
  AddNode(&m, "Flatten", {"p"}, {"f"});
  AddNode(&m, "Gemm", {"f", "fc.weight"}, {"y"});
  AddOutput(&m, "y");
  ImportOptions options;
  options.is_parameter = [](const std::string&) { return true; };
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->graph.parameters.size(), 2u);
  const ir::Persistent& filter = model->graph.parameters[0];
  EXPECT_EQ(filter.name, "conv.weight");
  EXPECT_EQ(filter.layout, ir::DiskLayout::kConvFilter);
  EXPECT_THAT(filter.type.shape, ElementsAre(3, 2, 2, 2));
  // Element [1, row 1, column 0, channel 1] of memory is [1, channel 1, row 1, column 0] of ONNX.
  EXPECT_EQ(model->parameter_values[0]->as<float>()[8 + 4 + 1], 8 + 4 + 2);
  EXPECT_EQ(model->graph.parameters[1].layout, ir::DiskLayout::kSame);
  EXPECT_EQ(model->parameter_values[1]->as<float>()[7], 7);
  for (const ir::Value& value : model->graph.values) EXPECT_NE(value.name, "constant_0");
}

TEST(OnnxImport, ImagesStayInTheEnginesOrderBetweenConvolutions) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {1, 2, 9, 9});
  *m.mutable_graph()->add_initializer() = Floats("w1", {3, 2, 2, 2});
  *m.mutable_graph()->add_initializer() = Floats("b1", {3});
  *m.mutable_graph()->add_initializer() = Floats("w2", {4, 3, 2, 2});
  AddNode(&m, "Conv", {"x", "w1", "b1"}, {"c"});
  AddNode(&m, "Relu", {"c"}, {"r"});
  SetInts(AddNode(&m, "MaxPool", {"r"}, {"p"}), "kernel_shape", {2, 2});
  AddNode(&m, "Conv", {"p", "w2"}, {"y"});
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->graph, "transpose"), 2);  // one in, one out
  EXPECT_EQ(CountOps(model->graph, "conv2d"), 2);
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("y")).shape, ElementsAre(1, 4, 6, 6));
}

TEST(OnnxImport, FunctionsTakeTheCallsAttributes) {
  ::onnx::ModelProto m = EmptyModel();
  m.add_opset_import()->set_domain("local");
  AddInput(&m, "x", {2, 3, 4});
  ::onnx::FunctionProto* f = m.add_functions();
  f->set_domain("local");
  f->set_name("Flat");
  f->add_input("a");
  f->add_output("b");
  f->add_attribute("where");
  f->add_opset_import()->set_version(17);
  auto* axis = AddNode(f->mutable_node(), "Flatten", {"a"}, {"b"})->add_attribute();
  axis->set_name("axis");
  axis->set_ref_attr_name("where");
  axis->set_type(::onnx::AttributeProto::INT);
  ::onnx::NodeProto* call = AddNode(&m, "Flat", {"x"}, {"y"});
  call->set_domain("local");
  SetInt(call, "where", 2);
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("y")).shape, ElementsAre(6, 4));
}

// A function of a to b, and a call of it.
::onnx::FunctionProto* AddFunction(::onnx::ModelProto* m, const std::string& name) {
  ::onnx::FunctionProto* f = m->add_functions();
  f->set_domain("local");
  f->set_name(name);
  f->add_input("a");
  f->add_output("b");
  f->add_opset_import()->set_version(17);
  return f;
}

::onnx::NodeProto* AddCall(::onnx::ModelProto* m, const std::string& name, const std::string& from,
                           const std::string& to) {
  ::onnx::NodeProto* call = AddNode(m, name, {from}, {to});
  call->set_domain("local");
  return call;
}

// By their numbers in ONNX's messages, which are newer than ONNX 1.12.
constexpr int kDefaultOfFunction = 11, kOverloadOfFunction = 13, kOverloadOfNode = 8;

TEST(OnnxImport, FunctionsHaveDefaultsOfTheirOwn) {
  ::onnx::ModelProto m = EmptyModel();
  m.add_opset_import()->set_domain("local");
  AddInput(&m, "x", {2, 3, 4});
  ::onnx::FunctionProto* f = AddFunction(&m, "Flat");
  auto* axis = AddNode(f->mutable_node(), "Flatten", {"a"}, {"b"})->add_attribute();
  axis->set_name("axis");
  axis->set_ref_attr_name("where");
  axis->set_type(::onnx::AttributeProto::INT);
  ::onnx::AttributeProto given = *axis;
  given.clear_ref_attr_name();
  given.set_name("where");
  given.set_i(2);
  f->mutable_unknown_fields()->AddLengthDelimited(kDefaultOfFunction, given.SerializeAsString());
  AddCall(&m, "Flat", "x", "y");
  SetInt(AddCall(&m, "Flat", "x", "z"), "where", 0);
  AddOutput(&m, "y");
  AddOutput(&m, "z");
  absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  // Flatten's own would be 1.
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("y")).shape, ElementsAre(6, 4));
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("z")).shape, ElementsAre(1, 24));
  f->mutable_unknown_fields()->AddLengthDelimited(kDefaultOfFunction, "no attribute");
  EXPECT_TRUE(absl::IsInvalidArgument(Import(m).status()));
}

TEST(OnnxImport, FunctionsOfOneNameDifferInTheirOverload) {
  ::onnx::ModelProto m = EmptyModel();
  m.add_opset_import()->set_domain("local");
  AddInput(&m, "x", {2, 3});
  for (const char* op : {"Neg", "Exp"}) {
    ::onnx::FunctionProto* f = AddFunction(&m, "F");
    AddNode(f->mutable_node(), op, {"a"}, {"b"});
    f->mutable_unknown_fields()->AddLengthDelimited(kOverloadOfFunction, op);
  }
  AddCall(&m, "F", "x", "t")->mutable_unknown_fields()->AddLengthDelimited(kOverloadOfNode, "Neg");
  AddCall(&m, "F", "t", "y")->mutable_unknown_fields()->AddLengthDelimited(kOverloadOfNode, "Exp");
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->graph.nodes.size(), 2u);
  EXPECT_EQ(ir::OpName(model->graph.nodes[0].op), "neg");
  EXPECT_EQ(ir::OpName(model->graph.nodes[1].op), "exp");
  for (::onnx::FunctionProto& f : *m.mutable_functions()) f.mutable_unknown_fields()->Clear();
  EXPECT_THAT(std::string(Import(m).status().message()), HasSubstr("two functions are named local.F"));
}

TEST(OnnxImport, TheStandardDomainHasTwoNames) {
  ::onnx::ModelProto m = EmptyModel();
  m.mutable_opset_import(0)->set_domain("ai.onnx");
  AddInput(&m, "x", {2, 3});
  AddFunction(&m, "F")->mutable_opset_import(0)->set_domain("ai.onnx");
  AddNode(m.mutable_functions(0)->mutable_node(), "Exp", {"a"}, {"b"});
  AddNode(&m, "Neg", {"x"}, {"t"});
  AddCall(&m, "F", "t", "y");
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->graph.nodes.size(), 2u);
}

TEST(OnnxImport, AKnownBranchIsTaken) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 3, 4});
  Proto condition;
  condition.set_name("c");
  condition.set_data_type(Proto::BOOL);
  condition.add_int32_data(1);
  *m.mutable_graph()->add_initializer() = condition;
  ::onnx::NodeProto* node = AddNode(&m, "If", {"c"}, {"y"});
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* attribute = node->add_attribute();
    attribute->set_name(name);
    attribute->set_type(::onnx::AttributeProto::GRAPH);
    SetInt(AddNode(attribute->mutable_g()->mutable_node(), "Flatten", {"x"}, {"flat"}), "axis",
           name == std::string("then_branch") ? 1 : 0);
    AddValue(attribute->mutable_g()->add_output(), "flat", Proto::FLOAT, {});
  }
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> model = Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->graph.type(model->graph.outputs.at("y")).shape, ElementsAre(2, 12));
}

// A branch reads values that stand around it without naming them as inputs.
TEST(OnnxImport, WhatABranchReadsIsWanted) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 3, 4});
  *m.mutable_graph()->add_initializer() = Ints("extent", {2});
  AddNode(&m, "Relu", {"x"}, {"positive"});
  AddNode(&m, "Neg", {"x"}, {"negative"});
  AddNode(&m, "Equal", {"extent", "extent"}, {"yes"});
  AddNode(&m, "Unheard", {"x"}, {"aside"});
  ::onnx::NodeProto* branch = AddNode(&m, "If", {"yes"}, {"y"});
  for (const char* name : {"then_branch", "else_branch"}) {
    ::onnx::AttributeProto* attribute = branch->add_attribute();
    attribute->set_name(name);
    attribute->set_type(::onnx::AttributeProto::GRAPH);
    if (name == std::string("then_branch")) {
      AddNode(attribute->mutable_g()->mutable_node(), "Exp", {"positive"}, {"result"});
      AddValue(attribute->mutable_g()->add_output(), "result", Proto::FLOAT, {});
    } else {
      AddValue(attribute->mutable_g()->add_output(), "negative", Proto::FLOAT, {});
    }
  }
  AddNode(&m, "Unheard", {"y"}, {"behind"});
  AddOutput(&m, "behind");
  ImportOptions options;
  options.outputs = {"y"};
  const absl::StatusOr<ImportedModel> model = Import(m, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->graph, "relu"), 1);
  EXPECT_EQ(CountOps(model->graph, "exp"), 1);
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(OnnxImport, InitializersBehindOtherOutputsAreNotRead) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 3});
  AddInput(&m, "elsewhere", {3});
  *m.mutable_graph()->add_initializer() = Floats("w", {3});
  Proto* elsewhere = m.mutable_graph()->add_initializer();
  *elsewhere = Floats("elsewhere", {3});
  elsewhere->clear_float_data();
  elsewhere->set_data_location(Proto::EXTERNAL);
  *m.mutable_graph()->add_initializer() = Floats("short", {3});
  m.mutable_graph()->mutable_initializer(2)->mutable_float_data()->RemoveLast();
  m.mutable_graph()->add_sparse_initializer()->mutable_values()->set_name("sparse");
  AddNode(&m, "Mul", {"x", "w"}, {"y"});
  AddNode(&m, "Add", {"y", "elsewhere"}, {"a"});
  AddNode(&m, "Add", {"a", "short"}, {"b"});
  AddNode(&m, "Add", {"b", "sparse"}, {"c"});
  AddOutput(&m, "c");
  const auto import = [&](const std::string& output) {
    ImportOptions options;
    options.outputs = {output};
    options.is_parameter = [](const std::string&) { return true; };
    return Import(m, options);
  };
  const absl::StatusOr<ImportedModel> model = import("y");
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->graph.parameters.size(), 1u);
  EXPECT_EQ(model->graph.parameters[0].name, "w");
  EXPECT_LT(model->graph.FindInput("elsewhere"), 0);
  EXPECT_THAT(std::string(import("a").status().message()), HasSubstr("'elsewhere' lies outside the model's file"));
  EXPECT_THAT(std::string(import("b").status().message()), HasSubstr("'elsewhere' lies outside the model's file"));
  EXPECT_THAT(std::string(import("c").status().message()), HasSubstr("sparse initializers"));
}

// "name shape" of those that are parameters, with a star where nothing tells weights.
std::vector<std::string> ParametersOf(const ::onnx::ModelProto& proto, const std::vector<std::string>& outputs = {}) {
  const absl::StatusOr<Model> model = Model::Parse(proto.SerializeAsString());
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<std::string> names;
  for (const FloatInitializer& f : model->FloatInitializers(outputs)) {
    if (f.parameter) names.push_back(f.name + (f.weight ? "" : "*"));
  }
  return names;
}

TEST(OnnxImport, TellsTrainedNumbersFromConstants) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 3, 4, 4});
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    *m.mutable_graph()->add_initializer() = Floats(name, shape);
    return name;
  };
  std::string y = "x";
  const auto then = [&](const std::string& op, const std::string& with) {
    AddNode(&m, op, {y, with}, {y + "'"});
    y += "'";
  };
  then("PRelu", add("slope", {1, 1, 1}));
  // CLIP: a number without axes whose exponential is a factor.
  AddNode(&m, "Exp", {add("logit_scale", {})}, {"e"});
  then("Mul", "e");
  then("Mul", add("blocks.0.gamma", {}));
  then("Mul", add("blocks.0.ls.gamma", {1, 3, 1, 1}));
  then("Add", add("onnx::Add_12", {}));
  then("Div", add("/norm/Constant_output_0", {}));
  then("Pow", add("45", {1}));
  then("Mul", add("scale", {}));
  then("Mul", add("val_3", {}));
  then("Add", add("table", {1, 3, 4, 4}));
  AddOutput(&m, y);
  EXPECT_THAT(ParametersOf(m), ElementsAre("slope", "logit_scale*", "blocks.0.gamma*", "blocks.0.ls.gamma*", "table*"));
  // PyTorch's constants have bare words for names, too.
  m.set_producer_name("pytorch");
  EXPECT_THAT(ParametersOf(m), ElementsAre("slope", "logit_scale*", "blocks.0.gamma*", "blocks.0.ls.gamma*", "table*"));
  EXPECT_THAT(ParametersOf(m, {"x''"}), ElementsAre("slope", "logit_scale*"));
  m.mutable_graph()->mutable_initializer(9)->set_float_data(0, -INFINITY);
  EXPECT_THAT(ParametersOf(m).back(), "blocks.0.ls.gamma*");
}

// PyTorch names buffers as it names parameters.
TEST(OnnxImport, NumbersOfFormulasAreConstantsWhateverTheirNames) {
  ::onnx::ModelProto m = EmptyModel();
  m.set_producer_name("pytorch");
  AddInput(&m, "x", {2, 1});
  std::string y = "x";
  const auto add = [&](const std::string& name, float value, std::vector<int64_t> shape = {}) {
    Proto proto = Floats(name, shape);
    proto.set_float_data(0, value);
    *m.mutable_graph()->add_initializer() = proto;
    return name;
  };
  const auto then = [&](const std::string& op, const std::string& with) {
    AddNode(&m, op, {y, with}, {y + "'"});
    y += "'";
  };
  then("Mul", add("core.scale", 0.125));
  then("Add", add("core.shift", 0));
  then("Add", add("core.eps", 1e-5f));
  then("Add", add("plain_eps", -1e-5f, {1}));
  then("Mul", add("core.fill", -1e9f));
  // Through a Cast or a Reshape, too.
  AddNode(&m, "Cast", {add("core.masked_bias", -10)}, {"masked"});
  m.mutable_graph()->mutable_node(5)->add_attribute()->set_name("to");
  AddNode(&m, "Less", {y, add("core.threshold", 0.5)}, {"less"});
  AddNode(&m, "Where", {"less", "masked", y}, {y + "'"});
  y += "'";
  AddNode(&m, "Clip", {y, add("core.low", -1), ""}, {y + "'"});
  y += "'";
  then("Mul", add("core.alphas.0", 0.5));
  then("Mul", add("0.5", 0.5));
  // What follows a product is a bias, however small.
  then("MatMul", add("core.weight", 2000, {1, 1}));
  AddNode(&m, "Transpose", {y}, {y + "'"});
  y += "'";
  then("Add", add("addend", 1e-5f, {1}));
  // Nothing says what this one is; of the module PyTorch would have named it.
  then("Add", add("detach", 0.5, {1}));
  AddOutput(&m, y);
  EXPECT_THAT(ParametersOf(m), ElementsAre("core.scale*", "core.shift*", "core.alphas.0*", "core.weight", "addend"));
  m.clear_producer_name();
  EXPECT_THAT(ParametersOf(m), ElementsAre("core.scale*", "core.shift*", "core.weight", "addend", "detach"));
}

void AddConstant(::onnx::ModelProto* m, const Proto& value, const std::string& attribute = "value") {
  auto* a = AddNode(m, "Constant", {}, {value.name()})->add_attribute();
  a->set_name(attribute);
  if (attribute == "value") {
    a->set_type(::onnx::AttributeProto::TENSOR);
    *a->mutable_t() = value;
    a->mutable_t()->clear_name();
  } else {
    a->set_type(::onnx::AttributeProto::FLOATS);
    *a->mutable_floats() = value.float_data();
  }
}

Proto Repeated(const std::string& name, const std::vector<int64_t>& shape, float value) {
  Proto proto = Floats(name, shape);
  for (float& v : *proto.mutable_float_data()) v = value;
  return proto;
}

// "name" of those that no training moves, though they stand where weights do.
std::vector<std::string> FrozenOf(const ::onnx::ModelProto& proto, const std::vector<std::string>& outputs = {}) {
  std::vector<std::string> names;
  for (const FloatInitializer& f : Model::Parse(proto.SerializeAsString())->FrozenWeights(outputs)) {
    names.push_back(f.name);
  }
  return names;
}

TEST(OnnxImport, WeightsInConstantNodesAreTrained) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 3, 4});
  AddConstant(&m, Floats("turned", {4, 4}));
  AddConstant(&m, Floats("bias", {4}), "value_floats");
  AddConstant(&m, Floats("scale", {4}));
  AddConstant(&m, Floats("mean", {1, 3, 4}));
  AddConstant(&m, Repeated("eps", {}, 1e-5f));
  AddConstant(&m, Floats("recurrent.w", {1, 8, 4}));
  AddConstant(&m, Floats("recurrent.r", {1, 8, 2}));
  AddConstant(&m, Floats("state", {1, 3, 2}));
  AddConstant(&m, Floats("elsewhere", {4, 4}));
  AddConstant(&m, Floats("mask", {3, 4}));
  AddNode(&m, "Sub", {"x", "mean"}, {"a"});
  AddNode(&m, "Transpose", {"turned"}, {"w"});
  AddNode(&m, "MatMul", {"a", "w"}, {"b"});
  AddNode(&m, "Add", {"b", "bias"}, {"c"});
  AddNode(&m, "LayerNormalization", {"c", "scale"}, {"d"});
  AddNode(&m, "Add", {"d", "eps"}, {"e"});
  SetInt(AddNode(&m, "LSTM", {"e", "recurrent.w", "recurrent.r", "", "", "state"}, {"f"}), "hidden_size", 2);
  AddNode(&m, "MatMul", {"x", "elsewhere"}, {"g"});
  AddNode(&m, "Add", {"g", "mask"}, {"h"});
  AddOutput(&m, "f");
  AddOutput(&m, "h");
  EXPECT_THAT(ParametersOf(m), ElementsAre("turned", "bias", "scale", "recurrent.w", "recurrent.r", "elsewhere"));
  EXPECT_THAT(ParametersOf(m, {"d"}), ElementsAre("turned", "bias", "scale"));
  EXPECT_THAT(FrozenOf(m), ElementsAre("state"));
  EXPECT_THAT(FrozenOf(m, {"d"}), ElementsAre());
  // As parameters they are what the file says.
  ImportOptions options;
  options.outputs = {"d"};
  const absl::StatusOr<ImportedModel> constants = Import(m, options);
  ASSERT_TRUE(constants.ok()) << constants.status();
  EXPECT_TRUE(constants->graph.parameters.empty());
  options.is_parameter = [](const std::string& name) { return name != "scale"; };
  const absl::StatusOr<ImportedModel> trained = Import(m, options);
  ASSERT_TRUE(trained.ok()) << trained.status();
  ASSERT_EQ(trained->graph.parameters.size(), 2u);
  EXPECT_EQ(trained->graph.parameters[1].name, "bias");
  EXPECT_THAT(trained->parameter_values[1]->as<float>(), ElementsAre(0, 1, 2, 3));
  // PyTorch writes parameters as initializers, and what a module makes as it goes as constants.
  m.set_producer_name("pytorch");
  EXPECT_THAT(ParametersOf(m), ElementsAre());
  EXPECT_THAT(FrozenOf(m), ElementsAre("turned", "bias", "scale", "recurrent.w", "recurrent.r", "state", "elsewhere"));
}

TEST(OnnxImport, TellsWeightsThatAreNotTrained) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 4});
  const auto half = [](const std::string& name, const std::vector<int64_t>& shape) {
    Proto proto = Floats(name, shape);
    proto.set_data_type(Proto::FLOAT16);
    for (int i = 0; i < proto.float_data_size(); ++i) proto.add_int32_data(0x3c00 + i);
    proto.clear_float_data();
    return proto;
  };
  *m.mutable_graph()->add_initializer() = half("half", {4, 4});
  *m.mutable_graph()->add_initializer() = half("added", {4});
  *m.mutable_graph()->add_initializer() = half("no weight", {4});
  *m.mutable_graph()->add_initializer() = Floats("known", {4, 4});
  AddConstant(&m, half("half constant", {4, 4}));
  // Norms that have no scale and no bias are written so.
  AddConstant(&m, Repeated("ones", {4}, 1));
  AddConstant(&m, Repeated("zeros", {4}, 0));
  std::string y = "x";
  const auto then = [&](const std::string& op, const std::string& with, bool cast) {
    if (cast) SetInt(AddNode(&m, "Cast", {with}, {with + "32"}), "to", Proto::FLOAT);
    AddNode(&m, op, {y, with + (cast ? "32" : "")}, {y + "'"});
    y += "'";
  };
  then("MatMul", "half", true);
  then("Add", "added", true);
  then("Mul", "no weight", true);
  then("MatMul", "known", false);
  then("MatMul", "half constant", true);
  AddNode(&m, "LayerNormalization", {y, "ones", "zeros"}, {"normed"});
  AddOutput(&m, "normed");
  EXPECT_THAT(FrozenOf(m), ElementsAre("half", "added", "half constant"));
  EXPECT_THAT(ParametersOf(m), ElementsAre("known", "ones", "zeros"));
  m.set_producer_name("pytorch");
  EXPECT_THAT(FrozenOf(m), ElementsAre("half", "added", "half constant"));
  EXPECT_THAT(ParametersOf(m), ElementsAre("known"));
  // Within a branch, too.
  ::onnx::GraphProto branch;
  *branch.add_initializer() = Floats("inner", {4, 4});
  AddNode(branch.mutable_node(), "MatMul", {"normed", "inner"}, {"z"});
  AddValue(branch.add_output(), "z", Proto::FLOAT, {});
  ::onnx::NodeProto* choice = AddNode(&m, "If", {"condition"}, {"chosen"});
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* attribute = choice->add_attribute();
    attribute->set_name(name);
    attribute->set_type(::onnx::AttributeProto::GRAPH);
    *attribute->mutable_g() = branch;
  }
  choice->mutable_attribute()->RemoveLast();
  EXPECT_THAT(FrozenOf(m), ElementsAre("half", "added", "half constant", "inner"));
}

TEST(OnnxImport, EvaluationKeepsTheMomentumOfBatchNorms) {
  for (const auto& [given, kept] : std::vector<std::pair<double, double>>{{-1, 0.9}, {0.99, 0.99}, {0, 0}, {1, 1}}) {
    ::onnx::ModelProto m = EmptyModel();
    AddInput(&m, "x", {2, 3});
    for (const char* name : {"scale", "bias", "mean", "variance"}) {
      *m.mutable_graph()->add_initializer() = Floats(name, {3});
    }
    auto* node = AddNode(&m, "BatchNormalization", {"x", "scale", "bias", "mean", "variance"}, {"y"});
    if (given >= 0) {
      auto* attribute = node->add_attribute();
      attribute->set_name("momentum");
      attribute->set_type(::onnx::AttributeProto::FLOAT);
      attribute->set_f(static_cast<float>(given));
    }
    AddOutput(&m, "y");
    const absl::StatusOr<ImportedModel> model = Import(m);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_EQ(CountOps(model->graph, "batch_norm_inference"), 1);
    for (const ir::Node& n : model->graph.nodes) {
      if (n.op != ir::OpKind::kBatchNormInference) continue;
      EXPECT_NEAR(n.attributes.Double("momentum", -1), 1 - kept, 1e-7);
    }
  }
}

TEST(OnnxImport, DropoutDrawsOnlyInTraining) {
  ::onnx::ModelProto m = EmptyModel(7);
  AddInput(&m, "x", {4, 3});
  AddNode(&m, "Dropout", {"x"}, {"y"})->set_name("drop");
  AddOutput(&m, "y");
  const absl::StatusOr<ImportedModel> inference = Import(m);
  ASSERT_TRUE(inference.ok()) << inference.status();
  EXPECT_EQ(CountOps(inference->graph, "dropout"), 0);
  ImportOptions options;
  options.training = true;
  const absl::StatusOr<ImportedModel> training = Import(m, options);
  ASSERT_TRUE(training.ok()) << training.status();
  ASSERT_EQ(CountOps(training->graph, "dropout"), 1);
  EXPECT_EQ(training->graph.nodes[0].layer, "drop");
  EXPECT_EQ(training->graph.nodes[0].attributes.Double("rate"), 0.5);
}

TEST(OnnxImport, WhatTheEngineHasNotIsUnimplemented) {
  const auto message = [](const ::onnx::ModelProto& m) {
    const absl::Status status = Import(m).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return std::string(status.message());
  };
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 2});
  AddNode(&m, "NonMaxSuppression", {"x"}, {"y"})->set_name("n7");
  AddOutput(&m, "y");
  EXPECT_THAT(message(m), HasSubstr("operation NonMaxSuppression"));
  EXPECT_THAT(message(m), HasSubstr("n7"));
  m = EmptyModel();
  AddInput(&m, "x", {2, 2}, Proto::DOUBLE);
  EXPECT_THAT(message(m), HasSubstr("DOUBLE"));
  m = EmptyModel();
  AddInput(&m, "x", {2, 2}, 22);
  EXPECT_THAT(message(m), HasSubstr("type 22"));
  m = EmptyModel();
  AddInput(&m, "x", {1, 1, 3, 3, 3});
  SetInts(AddNode(&m, "MaxPool", {"x"}, {"y"}), "kernel_shape", {2, 2, 2});
  EXPECT_THAT(message(m), HasSubstr("spatial rank 3"));
}

}  // namespace
}  // namespace ampd::models::onnx
