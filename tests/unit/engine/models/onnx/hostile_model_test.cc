// Bytes and models that mean harm: every one ends in a Status, soon and without much memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/models/onnx/import.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ::testing::HasSubstr;

absl::Status TensorStatus(const Proto& proto) { return ParseTensor(proto.SerializeAsString()).status(); }

TEST(HostileTensor, SizesAreChecked) {
  EXPECT_TRUE(TensorStatus(Floats("t", {2, 3})).ok());
  Proto t = Floats("t", {2, 3});
  t.set_dims(1, 4);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  t.set_dims(1, -3);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  // Products that come back to 6, or to 0, modulo 2^64.
  t.set_dims(0, int64_t{1} << 32);
  t.set_dims(1, int64_t{1} << 32);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  t.add_dims(0);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  t = Floats("t", {2, 3});
  t.set_raw_data(std::string(23, 'x'));
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  t = Proto();
  t.set_data_type(Proto::FLOAT);
  for (int i = 0; i < 100; ++i) t.add_dims(1);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostileTensor, OtherFilesAreNotRead) {
  Proto t = Floats("t", {1});
  t.set_data_location(Proto::EXTERNAL);
  auto* entry = t.add_external_data();
  entry->set_key("location");
  entry->set_value("/etc/passwd");
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(TensorStatus(t).message()), HasSubstr("outside the model's file"));
  EXPECT_THAT(std::string(TensorStatus(t).message()), HasSubstr("onnx.save_model(onnx.load(path), path)"));
  t = Floats("t", {1});
  t.mutable_segment()->set_begin(0);
  EXPECT_EQ(TensorStatus(t).code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostileModel, ReadsAndWritesHaveToFit) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {2, 2});
  AddNode(&m, "Relu", {"b"}, {"a"});
  AddNode(&m, "Relu", {"a"}, {"b"});
  AddOutput(&m, "a");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kInvalidArgument);  // a cycle
  m = EmptyModel();
  AddInput(&m, "x", {2, 2});
  AddNode(&m, "Relu", {}, {"a"});
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kInvalidArgument);
  m = EmptyModel();
  AddInput(&m, "x", {2, 2});
  AddOutput(&m, "nothing");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Model::Parse("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostileModel, HugeShapesTakeNoMemory) {
  const auto code = [](const char* op, const std::vector<int64_t>& numbers) {
    ::onnx::ModelProto m = EmptyModel();
    AddInput(&m, "x", {2, 2});
    *m.mutable_graph()->add_initializer() = Ints("n", numbers);
    const bool unary = std::string(op) == "ConstantOfShape";
    AddNode(&m, op, unary ? std::vector<std::string>{"n"} : std::vector<std::string>{"x", "n"}, {"y"});
    AddOutput(&m, "y");
    return Import(m).status().code();
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_NE(code("ConstantOfShape", {huge, 4}), absl::StatusCode::kOk);
  EXPECT_NE(code("ConstantOfShape", {-1}), absl::StatusCode::kOk);
  EXPECT_NE(code("Expand", {huge, 2, 2}), absl::StatusCode::kOk);
  EXPECT_NE(code("Tile", {huge, huge}), absl::StatusCode::kOk);
  EXPECT_NE(code("Reshape", {huge, 4, 4}), absl::StatusCode::kOk);
  EXPECT_NE(code("Reshape", {-1, 3}), absl::StatusCode::kOk);
  EXPECT_NE(code("Reshape", {-1, 0, 0, 0}), absl::StatusCode::kOk);
  EXPECT_NE(code("Pad", {huge, 0, huge, 0}), absl::StatusCode::kOk);
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {huge, huge});
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kResourceExhausted);
  // Nothing to reduce, for each of very many results.
  m = EmptyModel();
  *m.mutable_graph()->add_initializer() = Ints("n", {0, huge});
  AddNode(&m, "ConstantOfShape", {"n"}, {"x"});
  SetInts(AddNode(&m, "ReduceMax", {"x"}, {"y"}), "axes", {0});
  AddOutput(&m, "y");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kResourceExhausted);
  m = EmptyModel();
  AddInput(&m, "x", {0, huge, huge});
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kResourceExhausted);
}

// Each copies a whole weight, and none adds a node to the graph.
TEST(HostileModel, ConstantsCannotBeCopiedWithoutEnd) {
  const int64_t side = 100;
  ImportOptions options;
  options.max_elements = 1e5;
  for (const char* op : {"Reshape", "Transpose", "Slice"}) {
    const auto import = [&](int copies) {
      ::onnx::ModelProto m = EmptyModel();
      *m.mutable_graph()->add_initializer() = Floats("w0", {side, side});
      *m.mutable_graph()->add_initializer() = Ints("flat", {side * side});
      *m.mutable_graph()->add_initializer() = Ints("square", {side, side});
      *m.mutable_graph()->add_initializer() = Ints("start", {side - 1});
      *m.mutable_graph()->add_initializer() = Ints("end", {-1 - side});
      *m.mutable_graph()->add_initializer() = Ints("axis", {0});
      *m.mutable_graph()->add_initializer() = Ints("step", {-1});
      for (int i = 0; i < copies; ++i) {
        std::vector<std::string> inputs = {absl::StrCat("w", i)};
        if (op == std::string("Reshape")) inputs.push_back(i % 2 == 0 ? "flat" : "square");
        if (op == std::string("Slice")) inputs.insert(inputs.end(), {"start", "end", "axis", "step"});
        AddNode(&m, op, inputs, {absl::StrCat("w", i + 1)});
      }
      AddOutput(&m, absl::StrCat("w", copies));
      return Import(m, options).status();
    };
    EXPECT_TRUE(import(10).ok()) << import(10);
    const absl::Status many = import(1000);
    EXPECT_EQ(many.code(), absl::StatusCode::kResourceExhausted) << op << many;
    EXPECT_THAT(std::string(many.message()), HasSubstr("the model's constants take too much memory")) << op;
  }
}

// Operations that divide by extents or counts.
TEST(HostileModel, NothingIsDividedByZero) {
  for (const char* op : {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "BatchNormalization",
                         "MatMul", "Conv", "LSTM", "Attention", "SoftmaxCrossEntropyLoss", "Softmax"}) {
    ::onnx::ModelProto m = EmptyModel();
    for (const char* name : {"a", "b", "c", "d", "e"}) AddInput(&m, name, {0, 0, 0, 0});
    SetInt(AddNode(&m, op, {"a", "b", "c", "d", "e"}, {"y"}), "num_groups", 1);
    AddOutput(&m, "y");
    Import(m).status().IgnoreError();
  }
}

// Each function calls the next one twice: 2^60 nodes, were they all translated.
TEST(HostileModel, FunctionsCannotMultiplyWithoutEnd) {
  ::onnx::ModelProto m = EmptyModel();
  AddInput(&m, "x", {1});
  const int functions = 60;
  for (int i = 0; i < functions; ++i) {
    ::onnx::FunctionProto* f = m.add_functions();
    f->set_domain("local");
    f->set_name(absl::StrCat("F", i));
    f->add_input("a");
    f->add_output("c");
    f->add_opset_import()->set_version(17);
    const std::string callee = i + 1 < functions ? absl::StrCat("F", i + 1) : "Identity";
    AddNode(f->mutable_node(), callee, {"a"}, {"b"})->set_domain(i + 1 < functions ? "local" : "");
    AddNode(f->mutable_node(), callee, {"b"}, {"c"})->set_domain(i + 1 < functions ? "local" : "");
  }
  AddNode(&m, "F0", {"x"}, {"y"})->set_domain("local");
  AddOutput(&m, "y");
  EXPECT_EQ(Import(m).status().code(), absl::StatusCode::kResourceExhausted);
  // One that calls itself.
  m.mutable_functions(0)->mutable_node(0)->set_op_type("F0");
  EXPECT_FALSE(Import(m).ok());
}

::onnx::ModelProto Specimen() {
  ::onnx::ModelProto m = EmptyModel(12);
  AddInput(&m, "x", {1, 2, 5, 5});
  *m.mutable_graph()->add_initializer() = Floats("w", {3, 2, 2, 2});
  *m.mutable_graph()->add_initializer() = Floats("v", {3, 4});
  *m.mutable_graph()->add_initializer() = Ints("to", {1, -1});
  auto* conv = AddNode(&m, "Conv", {"x", "w"}, {"c"});
  SetInts(conv, "pads", {0, 1, 0, 1});
  SetInts(conv, "strides", {2, 1});
  SetInts(AddNode(&m, "MaxPool", {"c"}, {"p"}), "kernel_shape", {2, 2});
  AddNode(&m, "Relu", {"p"}, {"r"});
  AddNode(&m, "Shape", {"r"}, {"s"});
  SetInt(AddNode(&m, "Concat", {"s", "to"}, {"st"}), "axis", 0);
  AddNode(&m, "GlobalAveragePool", {"r"}, {"g"});
  AddNode(&m, "Reshape", {"g", "to"}, {"f"});
  AddNode(&m, "Gemm", {"f", "v"}, {"y"});
  AddOutput(&m, "y");
  AddOutput(&m, "st");
  return m;
}

// Whatever comes out, nothing crashes; every prefix and a few thousand mutations, the same in every run.
TEST(HostileModel, TruncatedAndMutatedBytes) {
  const std::string bytes = Specimen().SerializeAsString();
  ImportOptions options;
  options.max_elements = 1e6;
  const auto feed = [&](const std::string& input) {
    absl::StatusOr<Model> model = Model::Parse(input);
    if (!model.ok()) return false;
    model->inputs();
    model->outputs();
    return model->Import(options).ok();
  };
  for (size_t length = 0; length < bytes.size(); ++length) feed(bytes.substr(0, length));
  uint64_t state = 7;
  const auto next = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int round = 0; round < 4000; ++round) {
    std::string mutated = bytes;
    for (uint64_t changes = 1 + next() % 4; changes > 0; --changes) {
      mutated[next() % mutated.size()] = static_cast<char>(next());
    }
    feed(mutated);
  }
}

// The same on the level of messages, so that mutations get past the parser: attributes, extents and names are
// exchanged.
TEST(HostileModel, MutatedMessages) {
  const int64_t numbers[] = {0, -1, 1, 2, 7, int64_t{1} << 31, int64_t{1} << 62, INT64_MIN, INT64_MAX};
  uint64_t state = 11;
  const auto next = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  ImportOptions options;
  options.max_elements = 1e6;
  for (int round = 0; round < 4000; ++round) {
    ::onnx::ModelProto m = Specimen();
    auto* nodes = m.mutable_graph()->mutable_node();
    ::onnx::NodeProto& node = *nodes->Mutable(static_cast<int>(next() % nodes->size()));
    const int64_t number = numbers[next() % 9];
    switch (next() % 6) {
      case 0:
        node.set_op_type(nodes->Get(static_cast<int>(next() % nodes->size())).op_type());
        break;
      case 1:
        node.set_input(0, m.graph().initializer(static_cast<int>(next() % 3)).name());
        break;
      case 2:
        for (auto& attribute : *node.mutable_attribute()) {
          attribute.set_i(number);
          if (attribute.ints_size() > 0) attribute.set_ints(static_cast<int>(next() % attribute.ints_size()), number);
        }
        break;
      case 3:
        SetInt(&node, "group", number);
        SetInts(&node, "dilations", {number, 1});
        SetInts(&node, "axes", {number});
        SetInt(&node, "axis", number);
        break;
      case 4:
        m.mutable_graph()->mutable_initializer(2)->set_int64_data(static_cast<int>(next() % 2), number);
        break;
      default:
        m.mutable_graph()
            ->mutable_input(0)
            ->mutable_type()
            ->mutable_tensor_type()
            ->mutable_shape()
            ->mutable_dim(static_cast<int>(next() % 4))
            ->set_dim_value(number);
    }
    Import(m, options).status().IgnoreError();
  }
}

}  // namespace
}  // namespace ampd::models::onnx
