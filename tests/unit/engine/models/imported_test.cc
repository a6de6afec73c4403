// Networks in ONNX form as jobs train them: against the importer's own graph, float64 and finite differences.
#include "engine/models/imported.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/imported_jobs.h"

namespace ampd::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// `x` of [n, h, w, c] as [n, c, h, w].
RefTensor ChannelsFirst(const RefTensor& x) {
  const Shape& s = x.shape;
  RefTensor y = testing::Filled({s[0], s[3], s[1], s[2]});
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t c = i % s[3], p = i / s[3] % (s[1] * s[2]), n = i / (s[1] * s[2] * s[3]);
    y.data[static_cast<size_t>((n * s[3] + c) * s[1] * s[2] + p)] = x.data[static_cast<size_t>(i)];
  }
  return y;
}

void ExpectNear(const RefTensor& a, const RefTensor& b, double tolerance) {
  ASSERT_EQ(a.data.size(), b.data.size());
  for (size_t i = 0; i < a.data.size(); ++i) EXPECT_NEAR(a.data[i], b.data[i], tolerance) << i;
}

// Value `output` of the plain import, of samples as the data has them.
RefTensor ImportersResult(ModelProto proto, const std::string& output, const RefTensor& x) {
  proto.mutable_graph()->clear_output();
  onnx::AddOutput(&proto, output);
  onnx::ImportOptions options;
  const RefTensor turned = x.shape.size() == 4 ? ChannelsFirst(x) : x;
  const std::string input = proto.graph().input(0).name();
  options.input_shapes[input] = turned.shape;
  const auto imported = onnx::Import(proto, options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  GraphInputs in;
  in.inputs[input] = turned;
  return RunGraphReference(imported->graph, in).outputs.at(output);
}

TEST(Imported, EvaluatesAsTheFileSays) {
  const ModelProto proto = Convnet(0, {-1, 16});
  const auto model = Build(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  const GraphInputs in = InputsOf(model->eval, 3);
  // The softmax is the loss's.
  ExpectNear(RunGraphReference(model->eval, in).outputs.at("logits"),
             ImportersResult(proto, "logits", in.inputs.at("x")), 1e-12);
  EXPECT_EQ(CountOps(model->eval, ir::OpKind::kSoftmax), 0);
}

TEST(Imported, GradientsAreThoseOfFiniteDifferences) {
  for (const char* fields : {"", "freeze: 'bn.running_*'"}) {
    const auto model = Build(Convnet(0, {-1, 16}), {.fields = fields});
    ASSERT_TRUE(model.ok()) << model.status();
    const ir::Graph& graph = model->phases[0].train;
    GraphInputs in = InputsOf(graph, 3);
    const auto gradients = RunGraphReference(graph, in).gradients;
    for (size_t p = 0; p < in.parameters.size(); ++p) {
      for (size_t i = 0; i < in.parameters[p].data.size(); i += 3) {
        double& x = in.parameters[p].data[i];
        const double saved = x, step = 1e-6;
        const auto loss = [&](double at) {
          x = at;
          return RunGraphReference(graph, in).outputs.at("loss").data[0];
        };
        const double expected = (loss(saved + step) - loss(saved - step)) / (2 * step);
        x = saved;
        EXPECT_NEAR(gradients[p].data[i], expected, 1e-7 * (1 + std::abs(expected))) << graph.parameters[p].name << i;
      }
    }
  }
}

TEST(Imported, KeepsNamesAndNumbersOfTheFile) {
  const auto model = Build(Convnet(0, {-1, 16}));
  ASSERT_TRUE(model.ok()) << model.status();
  const ir::Graph& graph = model->phases[0].train;
  EXPECT_THAT(Names(graph.parameters),
              ElementsAre("conv.weight", "conv.bias", "bn.weight", "bn.bias", "fc.weight", "fc.bias"));
  EXPECT_THAT(Names(graph.states), ElementsAre("bn.running_mean", "bn.num_batches_tracked", "bn.running_var"));
  EXPECT_EQ(Names(model->eval.parameters), Names(graph.parameters));
  EXPECT_EQ(Names(model->eval.states), Names(graph.states));
  EXPECT_EQ(graph.parameters[0].layout, ir::DiskLayout::kConvFilter);
  EXPECT_THAT(graph.parameters[0].type.shape, ElementsAre(4, 3, 2, 2));
  const Proto weight = Weights("conv.weight", {4, 2, 3, 2});
  EXPECT_EQ(Values().at("conv.weight")->as<float>()[1], weight.float_data(6));  // channel 1 of the first cell
  EXPECT_EQ(Values().at("bn.running_var")->as<float>()[2], Weights("bn.running_var", {4}, 0.2, 3).float_data(2));
  EXPECT_EQ(Values().count("bn.num_batches_tracked"), 0u);
  const std::vector<bool> all(6, true);
  EXPECT_EQ(model->phases[0].trains, all);
}

// As PyTorch writes a network that was not trained: equal tensors once, the others as Identities of them.
ModelProto TwoNorms(bool trained) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 6});
  AddWeights(&m, "fc1.weight", {4, 6});
  AddWeights(&m, "fc2.weight", {3, 4});
  for (const char* name : {"bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"}) {
    AddWeights(&m, name, {4}, 0.5, trained ? 2 : 0.5);
    const std::string other = absl::StrCat("bn2", std::string(name).substr(3));
    onnx::AddNode(&m, "Identity", {name}, {other});
  }
  const auto norm = [&](const std::string& bn, const std::string& x, const std::string& y) {
    onnx::AddNode(&m, "BatchNormalization",
                  {x, bn + ".weight", bn + ".bias", bn + ".running_mean", bn + ".running_var"}, {y});
  };
  onnx::SetInt(onnx::AddNode(&m, "Gemm", {"x", "fc1.weight"}, {"a"}), "transB", 1);
  norm("bn1", "a", "b");
  onnx::AddNode(&m, "Relu", {"b"}, {"c"});
  norm("bn2", "c", "d");
  onnx::SetInt(onnx::AddNode(&m, "Gemm", {"d", "fc2.weight"}, {"logits"}), "transB", 1);
  onnx::AddOutput(&m, "logits");
  return m;
}

TEST(Imported, NormsThatOnlyLookAlikeAreTrainedApart) {
  const Job job{.sample = {.input_shape = {6}, .classes = 3}};
  const auto model = Build(TwoNorms(false), job);
  ASSERT_TRUE(model.ok()) << model.status();
  const ir::Graph& graph = model->phases[0].train;
  EXPECT_THAT(Names(graph.parameters), ::testing::UnorderedElementsAre("fc1.weight", "fc2.weight", "bn1.weight",
                                                                       "bn1.bias", "bn2.weight", "bn2.bias"));
  EXPECT_THAT(Names(graph.states),
              ::testing::UnorderedElementsAre("bn1.running_mean", "bn1.num_batches_tracked", "bn1.running_var",
                                              "bn2.running_mean", "bn2.num_batches_tracked", "bn2.running_var"));
  EXPECT_EQ(CountOps(graph, ir::OpKind::kBatchNormUpdate), 2);
  // Numbers that differ are tied, but never statistics.
  const auto tied = Build(TwoNorms(true), job);
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_EQ(tied->phases[0].train.parameters.size(), 4u);
  EXPECT_EQ(tied->phases[0].train.states.size(), 6u);
  EXPECT_EQ(CountOps(tied->phases[0].train, ir::OpKind::kBatchNormUpdate), 2);
}

TEST(Imported, TensorsOfOneRepeatedNumberAreTrainedApart) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {1}, {1, 1, 1}, {2, 1, 1}, {2, 6, 5}}) {
    ModelProto m = Convnet(0, {-1, 16});
    AddWeights(&m, "blocks.0.gate", shape, 0.5, 0.5);
    auto* nodes = m.mutable_graph()->mutable_node();
    nodes->Mutable(0)->set_input(0, "gated");
    onnx::AddNode(&m, "Identity", {"blocks.0.gate"}, {"blocks.1.gate"});
    onnx::AddNode(&m, "Mul", {"image", "blocks.0.gate"}, {"g"});
    onnx::AddNode(&m, "Mul", {"g", "blocks.1.gate"}, {"gated"});
    std::rotate(nodes->begin(), nodes->end() - 3, nodes->end());
    const auto model = Build(m);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT(Names(model->phases[0].train.parameters), ::testing::IsSupersetOf({"blocks.0.gate", "blocks.1.gate"}))
        << ShapeString(Shape(shape.begin(), shape.end()));
  }
}

TEST(Imported, StatisticsThatSomethingElseReadsAreNotTrained) {
  ModelProto m = Convnet(0, {-1, 16});
  for (::onnx::NodeProto& node : *m.mutable_graph()->mutable_node()) {
    if (node.name() == "bn") node.set_input(2, "bn.running_mean");
  }
  EXPECT_THAT(Refused(m), HasSubstr("the mean is parameter bn.running_mean"));
  EXPECT_TRUE(Build(m, {.fields = "freeze: 'bn.running_mean'"}).ok());
}

TEST(Imported, DescribesItsLayers) {
  const auto model = Build(Convnet(0, {-1, 16}), {.precision = "mode: BF16 rules { match: 'f?' dtype: FP32 }"});
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> lines;
  for (const v1::LayerPlan& layer : model->layers) {
    lines.push_back(absl::StrCat(layer.name(), " ", layer.kind(), " ", layer.dtype(), " ", layer.parameters()));
  }
  EXPECT_THAT(lines, ElementsAre("conv Conv bf16 52", "bn BatchNormalization bf16 8", "relu Relu bf16 0",
                                 "pool AveragePool bf16 0", "flatten Reshape bf16 0", "fc Gemm f32 51"));
  EXPECT_THAT(model->layers[0].output_shape(), ElementsAre(4, 4, 4));
  EXPECT_EQ(Refused(Convnet(0, {-1, 16}), {.precision = "mode: BF16 rules { match: 'con' dtype: FP32 }"}),
            "precision.rules[0].match: no layer matches 'con'; did you mean conv?");
}

TEST(Imported, TrainsInEveryMode) {
  for (const char* mode : {"FP32", "TF32", "FP16", "BF16", "FP8"}) {
    const auto model = Build(Convnet(1, {1, 16}), {.precision = absl::StrCat("mode: ", mode), .batch = 8});
    EXPECT_TRUE(model.ok()) << mode << model.status();
  }
}

// Against what the definition gives, worked out by hand.
TEST(Imported, TransposedConvolutionsGiveWhatAPadWouldCutOff) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {1, 1, 2, 2});
  *m.mutable_graph()->add_initializer() = onnx::Floats("w", {1, 1, 2, 2});
  ::onnx::NodeProto* node = onnx::AddNode(&m, "ConvTranspose", {"x", "w"}, {"y"});
  onnx::SetInts(node, "dilations", {2, 2});
  onnx::SetInts(node, "pads", {1, 1, 1, 1});
  onnx::SetInts(node, "output_padding", {1, 1});
  onnx::AddOutput(&m, "y");
  const auto model = onnx::Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  GraphInputs in;
  in.inputs["x"] = testing::Filled({1, 1, 2, 2});
  in.inputs["x"].data = {1, 2, 3, 4};
  EXPECT_THAT(RunGraphReference(model->graph, in).outputs.at("y").data, ElementsAre(0, 3, 4, 4, 3, 6, 8, 9, 12));
}

TEST(Imported, OldPowersStandAtTheirAxis) {
  ModelProto m = onnx::EmptyModel(6);
  onnx::AddInput(&m, "x", {1, 2, 1, 2});
  *m.mutable_graph()->add_initializer() = onnx::Floats("p", {2});
  ::onnx::NodeProto* node = onnx::AddNode(&m, "Pow", {"x", "p"}, {"y"});
  onnx::SetInt(node, "broadcast", 1);
  onnx::SetInt(node, "axis", 1);
  onnx::AddOutput(&m, "y");
  const auto model = onnx::Import(m);
  ASSERT_TRUE(model.ok()) << model.status();
  GraphInputs in;
  in.inputs["x"] = testing::Filled({1, 2, 1, 2});
  in.inputs["x"].data = {2, 3, 4, 5};
  EXPECT_THAT(RunGraphReference(model->graph, in).outputs.at("y").data, ElementsAre(1, 1, 4, 5));
}

TEST(Imported, BatchNormMovesItsStatisticsUnlessTheyAreFrozen) {
  const auto trained = Build(Convnet(0, {-1, 16}));
  ASSERT_TRUE(trained.ok()) << trained.status();
  const ir::Graph& graph = trained->phases[0].train;
  EXPECT_EQ(CountOps(graph, ir::OpKind::kBatchNorm), 1);
  EXPECT_EQ(CountOps(trained->eval, ir::OpKind::kBatchNormInference), 1);
  for (const ir::Node& node : graph.nodes) {
    if (node.op != ir::OpKind::kBatchNormUpdate) continue;
    EXPECT_FLOAT_EQ(static_cast<float>(node.attributes.Double("momentum")), 0.1f);  // ONNX's 0.9 stays
    EXPECT_EQ(node.attributes.Int("count"), 4 * 4 * 4);
  }
  const auto frozen = Build(Convnet(0, {-1, 16}), {.fields = "freeze: 'bn.running_*' freeze: 'conv.*'"});
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  EXPECT_EQ(CountOps(frozen->phases[0].train, ir::OpKind::kBatchNorm), 0);
  EXPECT_EQ(CountOps(frozen->phases[0].train, ir::OpKind::kBatchNormUpdate), 0);
  EXPECT_THAT(Names(frozen->phases[0].train.states), ElementsAre("bn.running_mean", "bn.running_var"));
  EXPECT_THAT(frozen->phases[0].trains, ElementsAre(false, false, true, true, true, true));
  // In training as in evaluation.
  const GraphInputs in = InputsOf(frozen->eval, 3);
  EXPECT_NEAR(RunGraphReference(frozen->phases[0].train, in).outputs.at("loss").data[0],
              RunGraphReference(frozen->eval, in).outputs.at("loss").data[0], 1e-12);
}

TEST(Imported, TrainingModeOfTheFileDoesNotMatter) {
  ModelProto proto = Convnet(0, {-1, 16});
  ::onnx::NodeProto* bn = proto.mutable_graph()->mutable_node(1);
  onnx::SetInt(bn, "training_mode", 1);
  bn->add_output("mean_after");
  bn->add_output("var_after");
  const auto model = Build(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  const GraphInputs in = InputsOf(model->eval, 3);
  ExpectNear(RunGraphReference(model->eval, in).outputs.at("logits"),
             ImportersResult(Convnet(0, {-1, 16}), "logits", in.inputs.at("x")), 1e-12);
}

TEST(Imported, DropoutIsForTraining) {
  ModelProto proto = Convnet(0, {-1, 16});
  proto.mutable_graph()->mutable_node(5)->set_input(0, "dropped");
  onnx::AddNode(&proto, "Dropout", {"e"}, {"dropped", "mask"});
  proto.mutable_graph()->mutable_node()->SwapElements(5, 7);
  proto.mutable_graph()->mutable_node()->SwapElements(6, 7);
  const auto model = Build(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  // And its gradient, which is another.
  EXPECT_EQ(CountOps(model->phases[0].train, ir::OpKind::kDropout), 2);
  EXPECT_EQ(CountOps(model->eval, ir::OpKind::kDropout), 0);
}

TEST(Imported, FreezeHasToMatch) {
  EXPECT_EQ(Refused(Convnet(0, {-1, 16}), {.fields = "freeze: 'conv.weigth'"}),
            "model.onnx.freeze[0]: no initializer that is trained matches 'conv.weigth'; did you mean conv.weight?");
  EXPECT_THAT(Refused(Convnet(0, {-1, 16}), {.fields = "freeze: '*'"}), HasSubstr("there is nothing to train"));
}

TEST(Imported, TakesAwayWhatTheLossDoesItself) {
  ModelProto proto = Convnet(0, {-1, 16});
  proto.mutable_graph()->mutable_node(6)->set_op_type("LogSoftmax");
  auto model = Build(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->phases[0].train, ir::OpKind::kLogSoftmax), 0);
  // Behind operations that move elements.
  onnx::SetInts(onnx::AddNode(&proto, "Transpose", {"probabilities"}, {"t"}), "perm", {1, 0});
  onnx::SetInts(onnx::AddNode(&proto, "Transpose", {"t"}, {"u"}), "perm", {1, 0});
  proto.mutable_graph()->mutable_output(0)->set_name("u");
  model = Build(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->phases[0].train, ir::OpKind::kLogSoftmax), 0);
  // Over another axis than the classes.
  onnx::SetInt(proto.mutable_graph()->mutable_node(6), "axis", 0);
  EXPECT_THAT(Refused(proto), HasSubstr("model.onnx.outputs: [log_softmax] at the end is over axis 0"));
  EXPECT_TRUE(Build(proto, {.fields = "outputs: 'logits'"}).ok());
  // Another loss takes probabilities as they are.
  SampleInfo floats = kImages;
  floats.classes = 0;
  floats.target_features = 3;
  model = Build(Convnet(0, {-1, 16}), {.sample = floats, .loss = "mean_squared_error"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->phases[0].train, ir::OpKind::kSoftmax), 1);
  proto = Convnet(0, {-1, 16});
  proto.mutable_graph()->mutable_node(6)->set_op_type("Sigmoid");
  model = Build(proto, {.sample = floats, .loss = "sigmoid_cross_entropy"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->phases[0].train, ir::OpKind::kSigmoid), 0);
}

TEST(Imported, AFixedBatchBecomesTheJobs) {
  const auto open = Build(Convnet(0, {-1, 16}));
  ASSERT_TRUE(open.ok()) << open.status();
  const GraphInputs in = InputsOf(open->eval, 3);
  const RefTensor expected = RunGraphReference(open->eval, in).outputs.at("logits");
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> files = {
      {1, {1, 16}}, {1, {1, -1}}, {1, {-1, 16}}, {1, {0, -1}}, {2, {2, 16}}, {4, {4, 16}}, {2, {2, -1}}};
  for (const auto& [batch, flat] : files) {
    const auto fixed = Build(Convnet(batch, flat));
    ASSERT_TRUE(fixed.ok()) << batch << fixed.status();
    ExpectNear(RunGraphReference(fixed->eval, in).outputs.at("logits"), expected, 1e-12);
  }
}

TEST(Imported, WeightsReshapedInAFixedBatchHoldNoSamples) {
  // x of [written, c] times k of [c] as [1, c]: a "constant", a "weight" or one "negated".
  const auto scaled = [](int64_t written, int64_t c, const std::string& kind) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {written, c});
    std::string k = "k";
    if (kind == "constant") {
      *onnx::AddNode(&m, "Constant", {}, {"k"})->add_attribute() = [&] {
        ::onnx::AttributeProto value;
        value.set_name("value");
        value.set_type(::onnx::AttributeProto::TENSOR);
        *value.mutable_t() = Weights("k", {c});
        return value;
      }();
    } else {
      AddWeights(&m, "k", {c});
    }
    if (kind == "negated") {
      onnx::AddNode(&m, "Neg", {"k"}, {"n"});
      k = "n";
    }
    *m.mutable_graph()->add_initializer() = onnx::Ints("shape", {1, -1});
    onnx::AddNode(&m, "Reshape", {k, "shape"}, {"row"});
    onnx::AddNode(&m, "Mul", {"x", "row"}, {"scaled"});
    AddWeights(&m, "w", {c, 3});
    onnx::AddNode(&m, "MatMul", {"scaled", "w"}, {"y"});
    onnx::AddOutput(&m, "y");
    return m;
  };
  for (const std::string kind : {"constant", "weight", "negated"}) {
    for (const int64_t c : {4, 8, 6}) {
      const Job job = {.sample = {.input_shape = {c}, .classes = 3}};
      const auto open = Build(scaled(-1, c, kind), job);
      ASSERT_TRUE(open.ok()) << open.status();
      const GraphInputs in = InputsOf(open->eval, 3);
      const RefTensor expected = RunGraphReference(open->eval, in).outputs.at("logits");
      for (const int64_t written : {1, 2}) {
        const auto fixed = Build(scaled(written, c, kind), job);
        ASSERT_TRUE(fixed.ok()) << kind << c << written << fixed.status();
        ExpectNear(RunGraphReference(fixed->eval, in).outputs.at("logits"), expected, 1e-12);
      }
    }
  }
}

TEST(Imported, SamplesOfAFixedBatchStayApart) {
  const auto refused = [](std::vector<std::vector<int64_t>> shapes, const std::string& between) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {1, 6});
    std::string last = "x";
    for (size_t i = 0; i < shapes.size(); ++i) {
      const std::string id = std::to_string(i);
      *m.mutable_graph()->add_initializer() = onnx::Ints("shape" + id, shapes[i]);
      onnx::AddNode(&m, "Reshape", {last, "shape" + id}, {"r" + id})->set_name("r" + id);
      last = "r" + id;
      if (i > 0 || between.empty()) continue;
      ::onnx::NodeProto* node = onnx::AddNode(&m, between, {last}, {"s"});
      if (between == "Transpose") onnx::SetInts(node, "perm", {1, 0});
      if (between == "Softmax") onnx::SetInt(node, "axis", 0);
      last = "s";
    }
    AddWeights(&m, "w", {6, 3});
    onnx::AddNode(&m, "MatMul", {last, "w"}, {"y"});
    onnx::AddOutput(&m, "y");
    return Refused(m, {.sample = {.input_shape = {6}, .classes = 3}});
  };
  // Of one sample this sorts numbers; of several it would put those of all in each.
  EXPECT_THAT(refused({{3, 2}, {1, 6}}, "Transpose"),
              HasSubstr("model.onnx.path: [reshape] would join samples of a batch"));
  EXPECT_THAT(refused({{-1, 2}, {1, 6}}, "Transpose"),
              HasSubstr("model.onnx.path: [reshape] would join samples of a batch"));
  EXPECT_THAT(refused({{1, 6}, {1, 6}}, "Softmax"), HasSubstr("[softmax] would join samples of a batch for another"));
  EXPECT_THAT(refused({{3, 2}, {1, 6}}, "Softmax"), HasSubstr("[softmax] would join samples"));
}

TEST(Imported, SlicesOfAFixedBatchLeaveSamplesInPlace) {
  const auto reversed = [](int64_t axis) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {1, 6});
    *m.mutable_graph()->add_initializer() = onnx::Ints("last", {-1});
    *m.mutable_graph()->add_initializer() = onnx::Ints("end", {-100000});
    *m.mutable_graph()->add_initializer() = onnx::Ints("axis", {axis});
    *m.mutable_graph()->add_initializer() = onnx::Ints("back", {-1});
    AddWeights(&m, "w", {6, 3});
    onnx::AddNode(&m, "Slice", {"x", "last", "end", "axis", "back"}, {"s"});
    onnx::AddNode(&m, "MatMul", {"s", "w"}, {"y"});
    onnx::AddOutput(&m, "y");
    return m;
  };
  const Job job = {.sample = {.input_shape = {6}, .classes = 3}};
  EXPECT_TRUE(Build(reversed(1), job).ok());
  // Of one sample this does nothing; of several it would give each another one's label.
  EXPECT_THAT(Refused(reversed(0), job), HasSubstr("model.onnx.path: [slice] would join samples of a batch"));
}

TEST(Imported, DrawsNewWeights) {
  ModelProto proto = Convnet(0, {-1, 16});
  proto.mutable_graph()->mutable_node(2)->set_op_type("PRelu");
  proto.mutable_graph()->mutable_node(2)->add_input("slope");
  AddWeights(&proto, "slope", {4, 1, 1});
  const auto model = Build(proto, {.fields = "weights: false"});
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<std::string, ir::Persistent> named;
  for (const auto* list : {&model->phases[0].train.parameters, &model->phases[0].train.states}) {
    for (const ir::Persistent& p : *list) named[p.name] = p;
  }
  using Kind = ir::Initializer::Kind;
  const auto kind = [&](const char* name) { return named.at(name).init.kind; };
  EXPECT_EQ(kind("conv.weight"), Kind::kUniform);
  EXPECT_DOUBLE_EQ(named.at("conv.weight").init.bound, 1 / std::sqrt(12.0));
  EXPECT_DOUBLE_EQ(named.at("fc.weight").init.bound, 1 / std::sqrt(16.0));
  for (const char* bias : {"conv.bias", "bn.bias", "fc.bias", "bn.running_mean"}) EXPECT_EQ(kind(bias), Kind::kZeros);
  for (const char* one : {"bn.weight", "bn.running_var"}) EXPECT_EQ(kind(one), Kind::kOnes) << one;
  EXPECT_EQ(kind("slope"), Kind::kZeros);
  EXPECT_TRUE(Values().empty());
}

// A gate that a file begins with 0.5 is no gate at 0 or 1.
TEST(Imported, SingleNumbersThatNoOperationWeighsWithAreNotDrawn) {
  ModelProto proto = Convnet(0, {-1, 16});
  for (const char* name : {"head.gate", "head.temperature"}) AddWeights(&proto, name, {}, 0.5, 0.5);
  AddWeights(&proto, "head.slope", {1}, 0.5, 0.5);
  AddWeights(&proto, "head.scale", {3});
  onnx::AddNode(&proto, "Mul", {"logits", "head.gate"}, {"a"});
  onnx::AddNode(&proto, "Exp", {"head.temperature"}, {"e"});
  onnx::AddNode(&proto, "Mul", {"a", "e"}, {"b"});
  onnx::AddNode(&proto, "PRelu", {"b", "head.slope"}, {"c"});
  onnx::AddNode(&proto, "Mul", {"c", "head.scale"}, {"y"});
  const auto model = Build(proto, {.fields = "weights: false outputs: 'y'"});
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> kept;
  for (const auto& [name, value] : Values()) {
    kept.push_back(name);
    EXPECT_EQ(value->as<float>()[0], 0.5f) << name;
  }
  EXPECT_THAT(kept, ElementsAre("head.gate", "head.temperature"));
}

TEST(Imported, NumbersOfTheFormulaAreNotTrained) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 4});
  AddWeights(&m, "w", {4, 1});
  AddWeights(&m, "bias", {1});
  AddWeights(&m, "half", {});
  AddWeights(&m, "unread", {5});
  onnx::AddNode(&m, "MatMul", {"x", "w"}, {"a"});
  onnx::AddNode(&m, "Add", {"a", "bias"}, {"b"});
  onnx::AddNode(&m, "Mul", {"b", "half"}, {"y"});
  onnx::AddOutput(&m, "y");
  const SampleInfo numbers{.input_shape = {4}, .target_features = 1};
  const auto model = Build(m, {.sample = numbers, .loss = "mean_squared_error"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(model->phases[0].train.parameters), ElementsAre("w", "bias"));
}

TEST(Imported, RefusesNormalizedIds) {
  SampleInfo bytes{.input_shape = {5}, .classes = 3, .label_shape = {5}};
  const auto behind = [&](const std::string& op) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {-1, 5}, Proto::FLOAT);
    AddWeights(&m, "one", {1});
    AddWeights(&m, "table", {9, 3});
    std::vector<std::string> operands = {"x"};
    if (op == "Where") {
      onnx::AddNode(&m, "Greater", {"x", "one"}, {"is_padding"});
      operands = {"is_padding", "one", "x"};
    } else if (op != "Floor" && op != "Round" && op != "Ceil") {
      operands.push_back("one");
    }
    auto* node = onnx::AddNode(&m, op, operands, {"a"});
    if (op == "Mod") onnx::SetInt(node, "fmod", 1);
    onnx::SetInt(onnx::AddNode(&m, "Cast", {"a"}, {"ids"}), "to", Proto::INT64);
    onnx::AddNode(&m, "Gather", {"table", "ids"}, {"y"});
    onnx::AddOutput(&m, "y");
    return m;
  };
  for (const char* op : {"Floor", "Round", "Ceil", "Sub", "Add", "Max", "Mod", "Where"}) {
    bytes.normalized = "UNIT";
    EXPECT_THAT(Refused(behind(op), {.sample = bytes}), HasSubstr("data.image.normalize")) << op;
    bytes.normalized.clear();
    const auto stored = Build(behind(op), {.sample = bytes});
    EXPECT_TRUE(stored.ok()) << op << stored.status();
  }
  // Multiplied by 255, say, they are what was stored.
  bytes.normalized = "UNIT";
  const auto scaled = Build(behind("Mul"), {.sample = bytes});
  EXPECT_TRUE(scaled.ok()) << scaled.status();
}

TEST(Imported, TakesSamplesAsTheFileWantsThem) {
  // Tokens.
  ModelProto tokens = onnx::EmptyModel();
  onnx::AddInput(&tokens, "ids", {-1, 5}, Proto::INT64);
  AddWeights(&tokens, "table", {9, 3});
  onnx::AddNode(&tokens, "Gather", {"table", "ids"}, {"y"});
  onnx::AddOutput(&tokens, "y");
  const auto model = Build(tokens, {.sample = {.input_shape = {5}, .classes = 3, .label_shape = {5}}});
  ASSERT_TRUE(model.ok()) << model.status();
  GraphInputs in = InputsOf(model->eval, 3);
  for (size_t i = 0; i < 20; ++i) in.inputs["x"].data[i] = static_cast<double>(i % 9);
  const RefTensor logits = RunGraphReference(model->eval, in).outputs.at("logits");
  EXPECT_FLOAT_EQ(static_cast<float>(logits.data[3 * 11 + 1]), Weights("table", {9, 3}).float_data(3 * 2 + 1));
  // Images for a network of vectors, flattened as PyTorch does.
  ModelProto flat = onnx::EmptyModel();
  onnx::AddInput(&flat, "x", {-1, 60});
  AddWeights(&flat, "w", {60, 3});
  onnx::AddNode(&flat, "MatMul", {"x", "w"}, {"y"});
  onnx::AddOutput(&flat, "y");
  const auto vectors = Build(flat);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  in = InputsOf(vectors->eval, 3);
  RefTensor turned = ChannelsFirst(in.inputs.at("x"));
  turned.shape = {4, 60};
  ExpectNear(RunGraphReference(vectors->eval, in).outputs.at("logits"), ImportersResult(flat, "y", turned), 1e-12);
  EXPECT_EQ(Refused(flat, {.sample = {.input_shape = {6, 5, 3}, .classes = 3}}),
            "model.onnx.input: 'x' is [n, 60], the data's samples are [6, 5, 3], turned [3, 6, 5]");
}

TEST(Imported, RefusesWhatItCannotTrain) {
  ModelProto two = Convnet(0, {-1, 16});
  onnx::AddInput(&two, "other", {3});
  onnx::AddNode(&two, "Mul", {"probabilities", "other"}, {"both"});
  two.mutable_graph()->mutable_output(0)->set_name("both");
  EXPECT_EQ(Refused(two),
            "model.onnx.input: networks of more than one input are not supported yet, has 'image', 'other'");
  EXPECT_EQ(Refused(Convnet(0, {-1, 16}), {.fields = "input: 'imag'"}),
            "model.onnx.input: the network has no input 'imag', but 'image'");
  EXPECT_THAT(Refused(Convnet(0, {-1, 16}), {.fields = "outputs: 'nothing'"}), HasSubstr("nothing writes output"));
  ModelProto half = Convnet(0, {-1, 16});
  half.mutable_graph()->mutable_node(2)->set_op_type("Cast");
  onnx::SetInt(half.mutable_graph()->mutable_node(2), "to", Proto::FLOAT16);
  EXPECT_THAT(Refused(half), HasSubstr("model.onnx.path: "));
  SampleInfo lengths{.input_shape = {5}, .classes = 3, .lengths = true, .buckets = {5}};
  EXPECT_THAT(Refused(Convnet(0, {-1, 16}), {.sample = lengths}), HasSubstr("model.onnx: samples differ in length"));
  ModelProto unknown = Convnet(0, {-1, 16});
  unknown.mutable_graph()->mutable_node(2)->set_op_type("Unheard");
  EXPECT_THAT(Refused(unknown), HasSubstr("model.onnx.path: Unheard relu: [onnx] operation Unheard"));
}

// Files for inference end in a choice among classes, which the engine may not have and training does not need.
TEST(Imported, WhatLiesBehindTheOutputIsNotLookedAt) {
  ModelProto proto = Convnet(0, {-1, 16});
  Proto thresholds = onnx::Floats("thresholds", {1, 3});
  thresholds.set_data_location(Proto::EXTERNAL);
  *proto.mutable_graph()->add_initializer() = thresholds;
  onnx::AddNode(&proto, "Multinomial", {"probabilities"}, {"class"})->set_name("draw");
  onnx::AddNode(&proto, "Sub", {"probabilities", "thresholds"}, {"best"})->set_name("best");
  onnx::AddOutput(&proto, "class");
  onnx::AddOutput(&proto, "best");
  for (const char* fields : {"outputs: 'logits'", "outputs: 'probabilities'", ""}) {
    const auto model = Build(proto, {.fields = fields});
    ASSERT_TRUE(model.ok()) << fields << ": " << model.status();
    const GraphInputs in = InputsOf(model->eval, 3);
    ExpectNear(RunGraphReference(model->eval, in).outputs.at("logits"),
               ImportersResult(Convnet(0, {-1, 16}), "logits", in.inputs.at("x")), 1e-12);
  }
  EXPECT_THAT(Refused(proto, {.fields = "outputs: 'class'"}), HasSubstr("model.onnx.path: Multinomial draw: "));
  EXPECT_THAT(Refused(proto, {.fields = "outputs: 'best'"}), HasSubstr("'thresholds' lies outside"));
}

// A Convnet that makes its image larger by sizes, among which the file's batch stands.
ModelProto ResizingConvnet(int64_t batch) {
  ModelProto proto = Convnet(batch, {batch, 16});
  *proto.mutable_graph()->add_initializer() = onnx::Ints("sizes", {batch, 4, 5, 4});
  proto.mutable_graph()->mutable_node(3)->set_input(0, "larger");
  ::onnx::NodeProto* resize = onnx::AddNode(&proto, "Resize", {"c", "", "", "sizes"}, {"larger"});
  auto* mode = resize->add_attribute();
  mode->set_name("mode");
  mode->set_type(::onnx::AttributeProto::STRING);
  mode->set_s("linear");
  for (int i = proto.graph().node_size(); --i > 3;) proto.mutable_graph()->mutable_node()->SwapElements(i, i - 1);
  return proto;
}

TEST(Imported, ResizesImagesOfAnyBatch) {
  const auto model = Build(ResizingConvnet(2), {.batch = 5});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->eval, ir::OpKind::kGather), 2);
  EXPECT_EQ(CountOps(model->eval, ir::OpKind::kTranspose),
            CountOps(Build(Convnet(2, {2, 16}))->eval, ir::OpKind::kTranspose));
  const GraphInputs in = InputsOf(model->eval, 3);
  ExpectNear(RunGraphReference(model->eval, in).outputs.at("logits"),
             ImportersResult(ResizingConvnet(5), "logits", in.inputs.at("x")), 1e-12);
}

// Whoever swaps the file for what was trained changes nothing else.
TEST(Imported, GoesHomeAsItsFileHasIt) {
  const ModelProto proto = Convnet(0, {-1, 16});
  for (const std::string output : {"probabilities", "logits"}) {
    const std::string fields = "outputs: '" + output + "'";
    ASSERT_TRUE(Build(proto, {.fields = fields}).ok());
    const ImportedValues values = Values();
    const auto home =
        BuildImportedInference(Resolve(fields, "mode: FP32", "softmax_cross_entropy").proto().model(), kImages, 4);
    ASSERT_TRUE(home.ok()) << home.status();
    ASSERT_GE(home->FindInput("image"), 0);
    EXPECT_EQ(home->type(home->FindInput("image")).shape, (Shape{4, 6, 5, 2}));
    ASSERT_EQ(home->outputs.size(), 1u);
    ASSERT_EQ(home->outputs.count(output), 1u);
    const GraphInputs in = InputsOf(*home, 3);
    ExpectNear(RunGraphReference(*home, in).outputs.at(output), ImportersResult(proto, output, in.inputs.at("image")),
               1e-12);
  }
}

TEST(Imported, DamagedFilesAreErrors) {
  const std::string whole = Convnet(1, {1, 16}).SerializeAsString();
  RngSequence rng(5, "damage");
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int hit = 0; hit < 1 + round % 4; ++hit) {
      const size_t at = rng.NextBelow(bytes.size());
      bytes[at] = static_cast<char>(rng.NextBelow(256));
    }
    if (round % 5 == 0) bytes.resize(rng.NextBelow(bytes.size()));
    auto file = onnx::Model::Parse(bytes);
    if (!file.ok()) continue;
    ProvideOnnxFile("a", std::make_shared<const onnx::Model>(*std::move(file)));
    const auto model = BuildModel(Resolve("", "mode: FP16", "softmax_cross_entropy"), kImages, 4, 4);
    EXPECT_TRUE(model.ok() || absl::IsInvalidArgument(model.status())) << model.status();
    for (const FieldViolation& v : FieldViolationsOf(model.status())) {
      EXPECT_TRUE(std::all_of(v.description.begin(), v.description.end(), [](char c) { return c >= ' ' && c <= '~'; }))
          << v.description;
    }
  }
}

}  // namespace
}  // namespace ampd::models
