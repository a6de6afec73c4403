// Models written as ONNX and read again by the importer compute what the float64 reference does for the graph they were
// written from, at a batch that neither graph had.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/models/export_forward.h"
#include "engine/models/imported_files.h"
#include "engine/models/onnx/export.h"
#include "engine/models/onnx/import.h"
#include "engine/train/disk_layout.h"
#include "proto/spec/resolve.h"
#include "tests/conformance/graph_runner.h"
#include "tests/support/emit.h"
#include "tests/support/graph_reference.h"
#include "tests/support/ref_tensor.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models {
namespace {

using ampd::testing::GraphInputs;
using ampd::testing::RefTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRunBatch = 5;

struct Network {
  std::string name;
  std::string layers;  // text format of ModelSpec
  SampleInfo sample;
  double largest_id = 0;  // above 0: inputs are whole numbers below it
  std::string part = "";  // of several networks
};

// With a loss, but for what has its own.
v1::JobSpec SpecOf(const std::string& model, const std::string& loss = "loss { softmax_cross_entropy {} }") {
  v1::JobSpec spec;
  const std::string text = "data { train { glyphs {} } } model { " + model + loss + " }";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? resolved->proto() : v1::JobSpec();
}

ir::Graph GraphOf(const Network& network, int64_t batch) {
  const v1::JobSpec spec = network.part.empty() ? SpecOf(network.layers) : SpecOf(network.layers, "");
  auto graph = BuildExportForward(spec, network.sample, batch, network.part);
  EXPECT_TRUE(graph.ok()) << network.name << ": " << graph.status();
  return graph.ok() ? *std::move(graph) : ir::Graph();
}

RefTensor RandomTensor(const Shape& shape, ampd::testing::Random* random, double low, double high) {
  RefTensor t = ampd::testing::Filled(shape);
  for (double& x : t.data) x = static_cast<float>(random->Uniform(low, high));
  return t;
}

// Parameters, states and a batch.
GraphInputs InputsOf(const Network& network, const ir::Graph& graph) {
  ampd::testing::Random random(7);
  GraphInputs in;
  for (const ir::Persistent& p : graph.parameters) {
    in.parameters.push_back(RandomTensor(p.type.shape, &random, -0.7, 0.7));
  }
  for (const ir::Persistent& s : graph.states) in.states.push_back(RandomTensor(s.type.shape, &random, 0.5, 1));
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    const bool lengths = value.name == "lengths";
    const bool ids = value.name == "labels" || network.largest_id > 0;
    const double largest = value.name == "labels" ? static_cast<double>(network.sample.classes) : network.largest_id;
    RefTensor t = RandomTensor(value.type.shape, &random, -1, 1);
    for (double& x : t.data) {
      if (lengths) x = std::floor((x + 1) / 2 * static_cast<double>(network.sample.input_shape[0])) + 1;
      if (!lengths && ids) x = std::floor((x + 1) / 2 * largest);
    }
    in.inputs[value.name] = t;
  }
  return in;
}

std::vector<int64_t> Axes(const ir::TensorType& type) {
  return type.shape.size() == 4 ? std::vector<int64_t>{0, 3, 1, 2} : std::vector<int64_t>();
}

// [N, H, W, C] as [N, C, H, W]; others as they are.
RefTensor ChannelsFirst(const RefTensor& x) {
  if (x.shape.size() != 4) return x;
  RefTensor y = ampd::testing::Filled({x.shape[0], x.shape[3], x.shape[1], x.shape[2]});
  size_t i = 0;
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    for (int64_t p = 0; p < x.shape[1] * x.shape[2]; ++p) {
      for (int64_t c = 0; c < x.shape[3]; ++c) {
        y.data[static_cast<size_t>((n * x.shape[3] + c) * x.shape[1] * x.shape[2] + p)] = x.data[i++];
      }
    }
  }
  return y;
}

absl::StatusOr<std::string> Export(const ir::Graph& graph, const ir::Graph& twin, const GraphInputs& values) {
  std::map<std::string, std::string> bytes;
  const auto add = [&](const std::vector<ir::Persistent>& list, const std::vector<RefTensor>& data) {
    for (size_t i = 0; i < list.size(); ++i) {
      const Tensor tensor = ampd::testing::ToTensor(data[i], list[i].type.dtype);
      std::string& disk = bytes[list[i].name];
      disk.resize(static_cast<size_t>(tensor.view().bytes()));
      train::ToDisk(list[i], tensor.view().data, disk.data());
    }
  };
  add(graph.parameters, values.parameters);
  add(graph.states, values.states);
  onnx::ExportOptions options;
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    options.inputs.push_back({value.name, value.name == "x" ? "input" : value.name, Axes(value.type), ""});
  }
  options.outputs = {{"output", "output", Axes(graph.type(graph.outputs.at("output"))), ""}};
  options.bytes = [&](const ir::Persistent& tensor) -> absl::StatusOr<absl::string_view> { return bytes[tensor.name]; };
  return onnx::ExportGraph(graph, twin, options);
}

::onnx::ModelProto ModelOf(const Network& network) {
  const ir::Graph graph = GraphOf(network, 2);
  const auto bytes = Export(graph, GraphOf(network, 3), InputsOf(network, graph));
  EXPECT_TRUE(bytes.ok()) << network.name << ": " << bytes.status();
  ::onnx::ModelProto model;
  EXPECT_TRUE(bytes.ok() && model.ParseFromString(*bytes));
  return model;
}

std::vector<std::string> Operations(const ::onnx::ModelProto& model) {
  std::vector<std::string> operations;
  for (const auto& node : model.graph().node()) operations.push_back(node.op_type());
  return operations;
}

RefTensor RunAgain(const std::string& bytes, const GraphInputs& in) {
  const auto model = onnx::Model::Parse(bytes);
  EXPECT_TRUE(model.ok()) << model.status();
  onnx::ImportOptions options;
  std::map<std::string, std::shared_ptr<const Tensor>> inputs;
  for (const onnx::ModelValue& value : model->inputs()) {
    const RefTensor& given = in.inputs.at(value.name == "input" ? "x" : value.name);
    const DType dtype = value.element_type == "INT64"   ? DType::kI64
                        : value.element_type == "INT32" ? DType::kI32
                                                        : DType::kF32;
    inputs[value.name] = std::make_shared<Tensor>(ampd::testing::ToTensor(ChannelsFirst(given), dtype));
    options.input_shapes[value.name] = inputs[value.name]->shape();
  }
  const auto imported = model->Import(options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  if (!imported.ok()) return {};
  const auto outputs = ampd::testing::RunImported(*imported, inputs, 1);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? ampd::testing::FromTensor(outputs->at("output").view()) : RefTensor();
}

// A ModelSpec's network that is this file, of input "x" and output "output".
std::string AsFile(const std::string& name, const ::onnx::ModelProto& proto) {
  auto file = onnx::Model::Parse(proto.SerializeAsString());
  EXPECT_TRUE(file.ok()) << file.status();
  if (file.ok()) ProvideOnnxFile(name, std::make_shared<const onnx::Model>(*std::move(file)));
  return absl::StrCat("onnx { path: '", name, "' channels_first: false }");
}

// A recurrence of `gates` that the engine has no operation of, over 4 steps of 2 numbers; its last state.
::onnx::ModelProto RecurrentFile(const std::string& op, int64_t gates, bool backwards) {
  ::onnx::ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 4, 2});
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"w", {1, gates * 3, 2}}, {"r", {1, gates * 3, 3}}, {"b", {1, 2 * gates * 3}}}) {
    *m.mutable_graph()->add_initializer() = onnx::Floats(name, shape);
  }
  *m.mutable_graph()->add_initializer() = onnx::Ints("zero", {0});
  onnx::SetInts(onnx::AddNode(&m, "Transpose", {"x"}, {"t"}), "perm", {1, 0, 2});
  ::onnx::NodeProto* node = onnx::AddNode(&m, op, {"t", "w", "r", "b"}, {"all", "last"});
  auto* clip = node->add_attribute();
  clip->set_name("clip");
  clip->set_type(::onnx::AttributeProto::FLOAT);
  clip->set_f(0.8f);
  auto* direction = node->add_attribute();
  direction->set_name("direction");
  direction->set_type(::onnx::AttributeProto::STRING);
  direction->set_s(backwards ? "reverse" : "forward");
  onnx::AddNode(&m, "Squeeze", {"last", "zero"}, {"output"});
  onnx::AddOutput(&m, "output");
  return m;
}

const char kAcgan[] = "preset { acgan { size: 8 channels: 3 classes: 5 noise: 6 width: 2 } }";
const SampleInfo kDrawings = {.input_shape = {8, 8, 3}, .classes = 5};

const std::vector<Network>& Networks() {
  static const auto& networks = *new std::vector<Network>{
      {"mlp",
       "layers { flatten {} } layers { dense { units: 7 activation: RELU } } layers { dense { units: 3 } }",
       {.input_shape = {4, 3, 2}}},
      {"convnet",
       R"pb(layers {
              name: "conv"
              conv2d { filters: 4 kernel: 3 stride: 2 padding: SAME }
            }
            layers {
              name: "bn"
              batch_norm {}
            }
            layers { relu {} }
            layers { max_pool { size: 2 } }
            layers { flatten {} }
            layers {
              name: "flat_bn"
              batch_norm {}
            }
            layers { layer_norm {} }
            layers {
              name: "head"
              dense { units: 3 }
            })pb",
       {.input_shape = {9, 8, 2}}},
      {"flattened output",
       "layers { conv2d { filters: 3 kernel: 2 } } layers { flatten {} } layers { tanh {} }",
       {.input_shape = {4, 5, 2}}},
      {"image output",
       R"pb(layers {
              name: "a"
              conv2d { filters: 4 kernel: 3 padding: SAME }
            }
            layers { layer_norm {} }
            layers { rms_norm {} }
            layers { group_norm { groups: 2 } }
            layers { instance_norm { affine: true } }
            layers { instance_norm {} }
            layers {
              conv_transpose2d {
                filters: 6
                kernel: 4
                stride: 2
                pads: 1
                groups: 2
                output_padding: [ 0, 1 ]
              }
            })pb",
       {.input_shape = {5, 4, 3}}},
      {"residual",
       R"pb(layers {
              name: "a"
              conv2d { filters: 3 kernel: 3 padding: SAME activation: GELU }
            }
            layers {
              name: "b"
              conv2d { filters: 3 kernel: 3 pads: 2 dilation: 2 groups: 3 activation: SILU }
            }
            layers {
              name: "sum"
              add {}
              inputs: "a"
              inputs: "b"
            }
            layers {
              name: "both"
              concat { axis: -1 }
              inputs: "sum"
              inputs: "a"
            }
            layers {
              name: "some"
              slice { begin: 1 end: -1 }
            }
            layers {
              name: "gate"
              sigmoid {}
            }
            layers {
              name: "gated"
              mul {}
              inputs: "some"
              inputs: "gate"
            }
            layers { global_avg_pool {} }
            layers { dense { units: 4 activation: SOFTPLUS } })pb",
       {.input_shape = {6, 5, 3}}},
      {"pools",
       R"pb(layers {
              max_pool {
                size: [ 3, 2 ]
                stride: 1
                pads: 1
                dilation: [ 2, 3 ]
              }
            }
            layers { avg_pool { size: 3 stride: 2 pads: 1 count_include_pad: true } }
            layers { avg_pool { size: 3 stride: 2 pads: 1 } }
            layers {
              avg_pool {
                size: 3
                stride: 1
                pads: [ 1, 0, 2, 1 ]
              }
            }
            layers { avg_pool { size: 2 stride: 1 pads: 1 dilation: 2 count_include_pad: true } })pb",
       {.input_shape = {15, 14, 2}}},
      {"activations",
       R"pb(layers { dense { units: 6 activation: LEAKY_RELU } }
            layers { dense { units: 6 activation: GELU_TANH } }
            layers { dense { units: 6 activation: ELU } }
            layers { elu { alpha: 0.3 } }
            layers { leaky_relu { negative_slope: 0.2 } }
            layers { dropout { rate: 0.5 } }
            layers { dense { units: 2 bias: false } })pb",
       {.input_shape = {5}}},
      {"transformer",
       R"pb(layers {
              name: "rnn"
              gru { units: 6 }
            }
            layers {
              name: "ln"
              layer_norm {}
            }
            layers {
              name: "self"
              multi_head_attention { heads: 2 causal: true }
            }
            layers {
              name: "sum"
              add {}
              inputs: "rnn"
              inputs: "self"
            }
            layers {
              name: "rms"
              rms_norm {}
            }
            layers {
              name: "cross"
              multi_head_attention { heads: 3 bias: false }
              inputs: "rms"
              inputs: "rnn"
            }
            layers { transpose {} }
            layers { reshape { shape: [ 3, -1 ] } }
            layers { dense { units: 4 } }
            layers { flatten {} })pb",
       {.input_shape = {4, 5}}},
      {"gpt",
       R"pb(layers {
              name: "wte"
              embedding { vocabulary: 11 features: 6 }
            }
            layers { positional_embedding { positions: 9 } }
            layers { multi_head_attention { heads: 2 causal: true } }
            layers { dense { units: 6 activation: GELU_TANH } }
            layers { dense { units: 11 weight_of: "wte" bias: false } })pb",
       {.input_shape = {7}},
       11},
      {"stacked",
       R"pb(layers { lstm { units: 4 layers: 2 bidirectional: true } }
            layers { gru { units: 3 layers: 2 bidirectional: true bias: false } }
            layers { lstm { units: 4 output: LAST_STEP } }
            layers { dense { units: 3 } })pb",
       {.input_shape = {4, 2}}},
      {"speech",
       R"pb(layers { conv2d { filters: 3 kernel: 3 stride: 2 padding: SAME activation: RELU } }
            layers { layer_norm {} }
            layers { lstm { units: 4 bidirectional: true } }
            layers { gru { units: 5 bias: false } }
            layers { multi_head_attention { heads: 1 } }
            layers { dense { units: 6 } })pb",
       {.input_shape = {8, 6}, .lengths = true}},
      {"recurrence of a file", AsFile("rnn", RecurrentFile("RNN", 1, true)), {.input_shape = {4, 2}}},
      {"clipped lstm of a file", AsFile("lstm", RecurrentFile("LSTM", 4, false)), {.input_shape = {4, 2}}},
      {"clipped gru of a file", AsFile("gru", RecurrentFile("GRU", 3, true)), {.input_shape = {4, 2}}},
      {"generator", kAcgan, kDrawings, 0, "generator"},
      {"classifier", kAcgan, kDrawings, 0, "class"},
      {"flattened features", kAcgan, kDrawings, 0, "trunk"},
      {"class of generated", kAcgan, kDrawings, 0, "generator.fake_class"},
  };
  return networks;
}

class ExportTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ExportTest, ComputesWhatTheReferenceDoes) {
  const Network& network = Networks()[GetParam()];
  const ir::Graph run = GraphOf(network, kRunBatch);
  ASSERT_FALSE(run.nodes.empty());
  const GraphInputs in = InputsOf(network, run);
  const RefTensor expected = ChannelsFirst(ampd::testing::RunGraphReference(run, in).outputs.at("output"));
  const auto bytes = Export(GraphOf(network, 2), GraphOf(network, 3), in);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const RefTensor got = RunAgain(*bytes, in);
  ASSERT_EQ(ShapeString(got.shape), ShapeString(expected.shape));
  double largest = 0;
  for (double x : expected.data) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 0.01);
  for (size_t i = 0; i < got.data.size(); ++i) {
    ASSERT_NEAR(got.data[i], expected.data[i], 1e-5 * std::max(largest, 1.0)) << i;
  }
}

// What a training that begins with `proto` would train or move.
std::set<std::string> TrainableOf(const ::onnx::ModelProto& proto) {
  const auto model = onnx::Model::Parse(proto.SerializeAsString());
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->Trainable() : std::set<std::string>();
}

// The two biases of a recurrence are one in the model.
TEST_P(ExportTest, ATrainingOfTheModelTrainsTheSame) {
  const Network& network = Networks()[GetParam()];
  const ir::Graph graph = GraphOf(network, 2);
  std::set<std::string> expected;
  for (const auto* list : {&graph.parameters, &graph.states}) {
    for (const ir::Persistent& tensor : *list) {
      if (tensor.type.dtype != DType::kF32) continue;
      expected.insert(absl::StrReplaceAll(tensor.name, {{"bias_ih", "bias"}, {"bias_hh", "bias"}}));
    }
  }
  EXPECT_THAT(TrainableOf(ModelOf(network)), ::testing::ContainerEq(expected));
}

INSTANTIATE_TEST_SUITE_P(Networks, ExportTest, ::testing::Range(size_t{0}, Networks().size()), [](const auto& info) {
  std::string name = Networks()[info.param].name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(ExportForm, ConvnetsLookAsPeopleExpect) {
  const ::onnx::ModelProto model = ModelOf({"plain",
                                            R"pb(layers {
                                                   name: "conv"
                                                   conv2d { filters: 4 kernel: 3 activation: RELU }
                                                 }
                                                 layers {
                                                   name: "bn"
                                                   batch_norm { momentum: 0.03 }
                                                 }
                                                 layers { max_pool { size: 2 } }
                                                 layers {
                                                   name: "conv2"
                                                   conv2d { filters: 5 kernel: 2 bias: false }
                                                 }
                                                 layers { flatten {} }
                                                 layers {
                                                   name: "fc"
                                                   dense { units: 6 activation: RELU }
                                                 }
                                                 layers {
                                                   name: "head"
                                                   dense { units: 3 }
                                                 })pb",
                                            {.input_shape = {8, 8, 2}}});
  EXPECT_THAT(Operations(model),
              ElementsAre("Conv", "Relu", "BatchNormalization", "MaxPool", "Conv", "Flatten", "Gemm", "Relu", "Gemm"));
  const auto& input = model.graph().input(0);
  EXPECT_EQ(input.name(), "input");
  EXPECT_EQ(input.type().tensor_type().shape().dim(0).dim_param(), "batch");
  EXPECT_EQ(input.type().tensor_type().shape().dim(1).dim_value(), 2);
  EXPECT_EQ(model.graph().output(0).name(), "output");
  EXPECT_EQ(model.graph().output(0).type().tensor_type().shape().dim(0).dim_param(), "batch");
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& tensor : model.graph().initializer()) {
    shapes[tensor.name()] = {tensor.dims().begin(), tensor.dims().end()};
  }
  EXPECT_EQ(shapes.at("conv.weight"), (std::vector<int64_t>{4, 2, 3, 3}));
  EXPECT_EQ(shapes.at("fc.weight"), (std::vector<int64_t>{6, 20}));
  EXPECT_EQ(shapes.count("bn.running_mean"), 1u);
  // ONNX's momentum is what stays, the layer's what is new.
  const ::onnx::NodeProto& norm = model.graph().node(2);
  const auto momentum = std::find_if(norm.attribute().begin(), norm.attribute().end(),
                                     [](const auto& attribute) { return attribute.name() == "momentum"; });
  ASSERT_NE(momentum, norm.attribute().end());
  EXPECT_FLOAT_EQ(momentum->f(), 0.97f);
  EXPECT_EQ(shapes.count("bn.num_batches_tracked"), 0u);
  EXPECT_EQ(shapes.size(), 2u + 4 + 1 + 2 + 2);
}

// A slope by a name that says nothing, numbers of formulas, and tables of an interpolation.
TEST(ExportForm, ConstantsAndNumbersStayWhatTheyWere) {
  ::onnx::ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 1, 4, 3});
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"filter", {2, 1, 3, 3}}, {"slope", {1}}, {"offset", {1}}, {"half", {}}, {"sizes", {4}}}) {
    *m.mutable_graph()->add_initializer() = onnx::Floats(name, shape);
  }
  for (int i = 0; i < 4; ++i) m.mutable_graph()->mutable_initializer(4)->set_float_data(i, i < 2 ? 1.f : 2.5f);
  onnx::AddNode(&m, "Conv", {"x", "filter"}, {"a"});
  onnx::AddNode(&m, "PRelu", {"a", "slope"}, {"b"});
  onnx::AddNode(&m, "Sub", {"b", "half"}, {"c"});
  auto* mode = onnx::AddNode(&m, "Resize", {"c", "", "sizes"}, {"d"})->add_attribute();
  mode->set_name("mode");
  mode->set_type(::onnx::AttributeProto::STRING);
  mode->set_s("linear");
  onnx::AddNode(&m, "Add", {"d", "offset"}, {"output"});
  onnx::AddOutput(&m, "output");
  const std::set<std::string> trained = TrainableOf(m);
  EXPECT_THAT(trained, ElementsAre("filter", "offset", "slope"));
  const ::onnx::ModelProto home = ModelOf({"numbers", AsFile("numbers", m), {.input_shape = {1, 4, 3}}});
  EXPECT_EQ(TrainableOf(home), trained);
  for (const ::onnx::TensorProto& tensor : home.graph().initializer()) EXPECT_EQ(trained.count(tensor.name()), 1u);
}

TEST(ExportForm, RecurrencesTurnTimeFirstOnce) {
  const ::onnx::ModelProto model =
      ModelOf({"stacked",
               "layers { name: 'rnn' lstm { units: 4 layers: 2 } } layers { gru { units: 3 output: LAST_STEP } }",
               {.input_shape = {4, 2}}});
  std::vector<std::string> operations = Operations(model);
  EXPECT_EQ(std::count(operations.begin(), operations.end(), "Transpose"), 1);
  EXPECT_EQ(std::count(operations.begin(), operations.end(), "LSTM"), 2);
  int64_t biases = 0;
  for (const auto& tensor : model.graph().initializer()) {
    if (tensor.name() == "rnn.bias_l1") biases = tensor.dims(1);
  }
  EXPECT_EQ(biases, 2 * 4 * 4);
}

TEST(ExportForm, IdsAreIntegers) {
  const ::onnx::ModelProto model = ModelOf(Networks()[8]);
  EXPECT_EQ(model.graph().input(0).type().tensor_type().elem_type(), ::onnx::TensorProto::INT64);
}

TEST(ExportRefusal, NamesLayerOperationAndNode) {
  ir::Graph graph;
  const ir::ValueId x = graph.AddInput("x", {DType::kF32, {2, 4, 4, 1}});
  const ir::Attributes window{{"size", std::vector<int64_t>{2, 2}},
                              {"strides", std::vector<int64_t>{2, 2}},
                              {"pads", std::vector<int64_t>{0, 0, 0, 0}}};
  const ir::ValueId y = ampd::testing::Emit(&graph, ir::OpKind::kMaxPool2d, "pool", {x}, window);
  graph.outputs = {{"output", ampd::testing::Emit(&graph, ir::OpKind::kMaxPool2dIndex, "places", {x, y}, window)}};
  const auto bytes = Export(graph, graph, {});
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(bytes.status().message()),
              HasSubstr("layer places: max_pool2d_index has no form in ONNX, node places.max_pool2d_index"));
}

ir::Graph WithConstant(int64_t batch, bool uniform) {
  ir::Graph graph;
  const ir::ValueId x = graph.AddInput("x", {DType::kF32, {batch, 3}});
  auto constant = std::make_shared<Tensor>(DType::kF32, Shape{batch, 3});
  for (int64_t i = 0; i < constant->size(); ++i) {
    constant->as<float>()[static_cast<size_t>(i)] = static_cast<float>(uniform ? i % 3 : i);
  }
  const ir::ValueId c = graph.AddConstant("c", constant);
  graph.outputs = {{"output", ampd::testing::Emit(&graph, ir::OpKind::kAdd, "sum", {x, c})}};
  return graph;
}

TEST(ExportRefusal, ConstantsMaySayNoMoreThanTheSameOfEverySample) {
  const auto refused = Export(WithConstant(2, false), WithConstant(3, false), {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("c depends on the size of the batch"));
  const auto bytes = Export(WithConstant(2, true), WithConstant(3, true), {});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  GraphInputs in;
  in.inputs["x"] = ampd::testing::Filled({kRunBatch, 3}, 1);
  const RefTensor got = RunAgain(*bytes, in);
  ASSERT_EQ(got.size(), 3 * kRunBatch);
  for (size_t i = 0; i < got.data.size(); ++i) EXPECT_EQ(got.data[i], 1.0 + static_cast<double>(i % 3));
}

TEST(ExportRefusal, NoLayers) {
  v1::JobSpec spec = SpecOf("layers { dense { units: 3 } }");
  spec.mutable_model()->clear_layers();
  EXPECT_TRUE(absl::IsFailedPrecondition(BuildExportForward(spec, {.input_shape = {4}}, 2).status()));
}

std::vector<std::string> InputNames(const std::string& part) {
  const auto graph = BuildExportForward(SpecOf(kAcgan, ""), kDrawings, 2, part);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> names;
  if (!graph.ok()) return names;
  for (const ir::Value& value : graph->values) {
    if (value.kind == ir::ValueKind::kInput) names.push_back(value.name);
  }
  return names;
}

TEST(ExportOfSeveral, ANetworkIsWhatTheDataGoesThrough) {
  // The first call of all these in the phase of the discriminator reads what was generated, or comes before.
  EXPECT_THAT(InputNames("trunk"), ElementsAre("x"));
  EXPECT_THAT(InputNames("source"), ElementsAre("x"));
  EXPECT_THAT(InputNames("generator"), ElementsAre("noise.z", "labels"));
  EXPECT_THAT(InputNames("discriminator.fake_source"), ElementsAre("noise.z", "labels"));
}

TEST(ExportOfSeveral, TakesTheWeightsOfThoseThatTakePart) {
  const auto graph = BuildExportForward(SpecOf(kAcgan, ""), kDrawings, 2, "class");
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::set<std::string> networks;
  for (const ir::Persistent& p : graph->parameters) networks.insert(p.name.substr(0, p.name.find('.')));
  EXPECT_THAT(networks, ElementsAre("class", "trunk"));
}

TEST(ExportOfSeveral, LabelsAreWholeNumbersInTheModel) {
  const ::onnx::ModelProto model = ModelOf({"generator", kAcgan, kDrawings, 0, "generator"});
  ASSERT_EQ(model.graph().input_size(), 2);
  EXPECT_EQ(model.graph().input(0).type().tensor_type().elem_type(), ::onnx::TensorProto::FLOAT);
  EXPECT_EQ(model.graph().input(1).name(), "labels");
  EXPECT_EQ(model.graph().input(1).type().tensor_type().elem_type(), ::onnx::TensorProto::INT64);
}

// A judge of images and their classes, called on what was drawn first; and its input a second time.
const char kConditional[] =
    "noise { name: 'z' shape: 6 }"
    "networks { name: 'g' inputs: 'noise' inputs: 'label' layers { name: 't' inputs: 'label' embedding { vocabulary: 5 "
    "features: 6 } } layers { name: 'both' inputs: 'noise' inputs: 't' mul {} } }"
    "networks { name: 'd' inputs: 'x' inputs: 'label' layers { name: 't' inputs: 'label' embedding { vocabulary: 5 "
    "features: 6 } } layers { name: 'both' inputs: 'x' inputs: 't' mul {} } layers { name: 'bn' batch_norm {} }"
    "  layers { name: 'steps' reshape { shape: [ 2, 3 ] } } layers { name: 'rnn' lstm { units: 3 } }"
    "  layers { name: 'flat' flatten {} } }"
    "networks { name: 'regress' inputs: 'x' inputs: 'wanted' layers { name: 'sum' inputs: 'x' inputs: 'wanted' add {} "
    "} }";

v1::JobSpec Conditional() {
  v1::JobSpec spec;
  const std::string text =
      absl::StrCat("data { train { glyphs {} } } model { ", kConditional, " } phases { name: 'judge' trains: '*' ",
                   "calls { name: 'fake' network: 'g' inputs: 'z' inputs: 'labels' }"
                   "calls { name: 'on_fake' network: 'd' inputs: 'fake' inputs: 'labels' }"
                   "calls { name: 'on_data' network: 'd' inputs: 'data' inputs: 'labels' }"
                   "calls { name: 'again' network: 'd' inputs: 'on_data' inputs: 'labels' }"
                   "calls { name: 'beside' network: 'regress' inputs: 'data' inputs: 'targets' }"
                   "losses { input: 'again' loss { mean_squared_error {} } target: 1 } losses { input: 'on_fake' loss "
                   "{ mean_squared_error {} } target: 0 }"
                   "losses { input: 'beside' loss { mean_squared_error {} } target: 0 } }");
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? resolved->proto() : v1::JobSpec();
}

TEST(ExportOfSeveral, DataWithItsClassIsDataToo) {
  EXPECT_EQ(ExportedCall(Conditional(), "d").value_or(""), "judge.on_data");
  EXPECT_EQ(ExportedCall(Conditional(), "g").value_or(""), "judge.fake");
  EXPECT_EQ(ExportedCall(Conditional(), "judge.again").value_or(""), "judge.again");
}

TEST(ExportOfSeveral, TheSameWeightsMayBeReadTwice) {
  const SampleInfo sample = {.input_shape = {6}, .classes = 5};
  const auto graph = [&](int64_t batch) { return BuildExportForward(Conditional(), sample, batch, "judge.again"); };
  ASSERT_TRUE(graph(2).ok()) << graph(2).status();
  const Network as{"twice", "", sample, 0, "judge.again"};
  const ir::Graph run = *graph(kRunBatch);
  const GraphInputs in = InputsOf(as, run);
  const RefTensor expected = ampd::testing::RunGraphReference(run, in).outputs.at("output");
  const auto bytes = Export(*graph(2), *graph(3), in);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const RefTensor got = RunAgain(*bytes, in);
  ASSERT_EQ(ShapeString(got.shape), ShapeString(expected.shape));
  for (size_t i = 0; i < got.data.size(); ++i) ASSERT_NEAR(got.data[i], expected.data[i], 1e-5) << i;
}

TEST(ExportOfSeveral, TargetsAreAsManyAsTheDataHas) {
  const auto graph = BuildExportForward(Conditional(), {.input_shape = {6}, .target_features = 6}, 2, "regress");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->type(graph->FindInput("targets")).shape, (Shape{2, 6}));
  const auto unknown = BuildExportForward(Conditional(), {.input_shape = {6}}, 2, "regress");
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown.status())) << unknown.status();
}

TEST(ExportRefusal, OneOfSeveralMustBeNamed) {
  const auto error = [](const std::string& part) {
    const absl::Status status = BuildExportForward(SpecOf(kAcgan, ""), kDrawings, 2, part).status();
    return status.ToString();
  };
  EXPECT_EQ(error(""),
            "FAILED_PRECONDITION: the model has 4 networks, of which a graph is of one: name `network`, generator or "
            "trunk or source or class");
  for (const char* wrong : {"generater", "generator.fake_clas", "discriminator.", "."}) {
    EXPECT_EQ(error(wrong), absl::StrCat("INVALID_ARGUMENT: network: the model has no network and no call '", wrong,
                                         "'; it has generator or trunk or source or class, and calls PHASE.CALL of "
                                         "them"));
  }
}

TEST(ExportRefusal, NoNetworkOfOne) {
  const auto graph = BuildExportForward(SpecOf("layers { dense { units: 3 } }"), {.input_shape = {4}}, 2, "g");
  EXPECT_TRUE(absl::IsInvalidArgument(graph.status())) << graph.status();
}

}  // namespace
}  // namespace ampd::models
