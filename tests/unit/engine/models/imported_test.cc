// Networks in ONNX form as jobs train them: against the importer's own graph, float64 and finite differences.
#include "engine/models/imported.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "engine/models/imported_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models {
namespace {

using onnx::Proto;
using ::testing::ElementsAre;
using testing::GraphInputs;
using ::testing::HasSubstr;
using testing::RefTensor;
using testing::RunGraphReference;
using ModelProto = ::onnx::ModelProto;

const SampleInfo kImages{.input_shape = {6, 5, 2}, .classes = 3};

// Numbers of a file, in [low, high), drawn by the name.
Proto Weights(const std::string& name, const std::vector<int64_t>& shape, float low = -1, float high = 1) {
  Proto proto = onnx::Floats(name, shape);
  RngSequence rng(7, name);
  for (float& v : *proto.mutable_float_data()) v = low + (high - low) * rng.NextUniform();
  return proto;
}

void AddWeights(ModelProto* m, const std::string& name, const std::vector<int64_t>& shape, float low = -1,
                float high = 1) {
  *m->mutable_graph()->add_initializer() = Weights(name, shape, low, high);
}

// conv - batch norm - relu - pool - reshape to `flat` - linear - softmax. `batch` below 1: open.
ModelProto Convnet(int64_t batch, const std::vector<int64_t>& flat) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "image", {batch < 1 ? -1 : batch, 2, 6, 5});
  AddWeights(&m, "conv.weight", {4, 2, 3, 2});
  AddWeights(&m, "conv.bias", {4});
  AddWeights(&m, "bn.weight", {4}, 0.5, 2);
  AddWeights(&m, "bn.bias", {4});
  AddWeights(&m, "bn.running_mean", {4});
  AddWeights(&m, "bn.running_var", {4}, 0.2, 3);
  AddWeights(&m, "fc.weight", {3, 16});
  AddWeights(&m, "fc.bias", {3});
  *m.mutable_graph()->add_initializer() = onnx::Ints("flat", flat);
  onnx::AddNode(&m, "Conv", {"image", "conv.weight", "conv.bias"}, {"a"})->set_name("conv");
  onnx::AddNode(&m, "BatchNormalization", {"a", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}, {"b"})
      ->set_name("bn");
  onnx::AddNode(&m, "Relu", {"b"}, {"c"})->set_name("relu");
  ::onnx::NodeProto* pool = onnx::AddNode(&m, "AveragePool", {"c"}, {"d"});
  pool->set_name("pool");
  onnx::SetInts(pool, "kernel_shape", {2, 2});
  onnx::SetInts(pool, "strides", {2, 2});
  onnx::AddNode(&m, "Reshape", {"d", "flat"}, {"e"})->set_name("flatten");
  ::onnx::NodeProto* fc = onnx::AddNode(&m, "Gemm", {"e", "fc.weight", "fc.bias"}, {"logits"});
  fc->set_name("fc");
  onnx::SetInt(fc, "transB", 1);
  onnx::AddNode(&m, "Softmax", {"logits"}, {"probabilities"})->set_name("softmax");
  onnx::AddOutput(&m, "probabilities");
  return m;
}

ResolvedJobSpec Resolve(const std::string& fields, const std::string& precision, const std::string& loss) {
  v1::JobSpec spec;
  const std::string text = "data { train { glyphs {} } } precision { " + precision + " } model { onnx { path: 'a' " +
                           fields + " } loss { " + loss + " {} } }";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

struct Job {
  std::string fields;
  SampleInfo sample = kImages;
  std::string precision = "mode: FP32";
  std::string loss = "softmax_cross_entropy";
  int64_t batch = 4;
};

absl::StatusOr<Model> Build(const ModelProto& proto, const Job& job = {}) {
  auto file = onnx::Model::Parse(proto.SerializeAsString());
  if (!file.ok()) return file.status();
  ProvideOnnxFile("a", std::make_shared<const onnx::Model>(*std::move(file)));
  return BuildModel(Resolve(job.fields, job.precision, job.loss), job.sample, job.batch, job.batch);
}

// First values of the model built last.
ImportedValues Values() { return FindImportedValues("a"); }

// What is wrong, with its field.
std::string Refused(const ModelProto& proto, const Job& job = {}) {
  const auto model = Build(proto, job);
  EXPECT_FALSE(model.ok());
  const auto list = FieldViolationsOf(model.status());
  return list.size() == 1 ? list[0].field + ": " + list[0].description : model.status().ToString();
}

RefTensor Random(const Shape& shape, const std::string& name) {
  RngSequence rng(3, name);
  RefTensor tensor = testing::Filled(shape);
  for (double& v : tensor.data) v = 2 * rng.NextUniform() - 1;
  return tensor;
}

// Random samples and labels, and the numbers of the file.
GraphInputs InputsOf(const ir::Graph& graph, int64_t classes) {
  const ImportedValues values = Values();
  GraphInputs in;
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    RefTensor tensor = Random(value.type.shape, value.name);
    for (size_t i = 0; value.name == "labels" && i < tensor.data.size(); ++i) {
      tensor.data[i] = static_cast<double>(static_cast<int64_t>(i) % classes);
    }
    in.inputs[value.name] = std::move(tensor);
  }
  const auto first = [&](const ir::Persistent& p) {
    const auto value = values.find(p.name);
    return value == values.end() ? testing::Filled(p.type.shape) : testing::FromTensor(value->second->view());
  };
  for (const ir::Persistent& p : graph.parameters) in.parameters.push_back(first(p));
  for (const ir::Persistent& p : graph.states) in.states.push_back(first(p));
  in.step.loss_seed = 1;
  return in;
}

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

int CountOps(const ir::Graph& graph, ir::OpKind op) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const ir::Node& node) { return node.op == op; }));
}

std::vector<std::string> Names(const std::vector<ir::Persistent>& list) {
  std::vector<std::string> names;
  for (const ir::Persistent& p : list) names.push_back(p.name);
  return names;
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
