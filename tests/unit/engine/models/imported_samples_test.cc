// What imported networks may not lose in training: whole numbers to a precision rule, and samples to a dropout that
// takes the first axis for theirs.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/imported_jobs.h"
#include "tests/unit/engine/runtime/machine.h"

namespace ampd::models {
namespace {

// The forward graph's dropouts, of which gradients have others.
std::vector<const ir::Node*> Dropouts(const ir::Graph& graph) {
  std::vector<const ir::Node*> found;
  for (const ir::Node& node : graph.nodes) {
    if (node.op == ir::OpKind::kDropout && node.stage == ir::Stage::kForward) found.push_back(&node);
  }
  return found;
}

std::vector<bool> Kept(const RefTensor& dropped) {
  std::vector<bool> kept;
  for (double v : dropped.data) kept.push_back(v != 0);
  return kept;
}

TEST(Imported, AMaskIsOfWhatWasDropped) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 6});
  AddWeights(&m, "w", {6, 3});
  onnx::AddNode(&m, "Dropout", {"x"}, {"kept", "mask"})->set_name("drop");
  onnx::SetInt(onnx::AddNode(&m, "Cast", {"mask"}, {"ones"}), "to", Proto::FLOAT);
  onnx::AddNode(&m, "Add", {"kept", "ones"}, {"a"});
  onnx::AddNode(&m, "MatMul", {"a", "w"}, {"y"});
  onnx::AddOutput(&m, "y");
  const auto model = Build(m, {.sample = {.input_shape = {6}, .classes = 3}, .batch = 32});
  ASSERT_TRUE(model.ok()) << model.status();
  const ir::Graph& graph = model->phases[0].train;
  const auto dropouts = Dropouts(graph);
  ASSERT_EQ(dropouts.size(), 2u);
  const auto values = RunGraphReference(graph, InputsOf(graph, 3)).values;
  const std::vector<bool> kept = Kept(values[static_cast<size_t>(dropouts[0]->outputs[0])]);
  EXPECT_EQ(kept, Kept(values[static_cast<size_t>(dropouts[1]->outputs[0])]));
  EXPECT_GT(std::count(kept.begin(), kept.end(), true), 60);
  EXPECT_LT(std::count(kept.begin(), kept.end(), true), 132);
}

// Samples of 5 steps of 4 numbers, dropped in an order of axes that `layout` names. `batch` below 1: open.
ModelProto DroppedSteps(const std::string& layout, int64_t batch) {
  ModelProto m = onnx::EmptyModel();
  const int64_t n = batch < 1 ? -1 : batch;
  onnx::AddInput(&m, "x", {n, 5, 4});
  AddWeights(&m, "w", {20, 3});
  const bool turned = layout != "plain" && layout != "joined", joined = layout != "plain" && layout != "turned";
  std::string last = "x";
  const auto add = [&](const std::string& op, const std::string& shape) {
    std::vector<std::string> inputs = {last};
    if (!shape.empty()) inputs.push_back(shape);
    last = absl::StrCat("v", m.graph().node_size());
    return onnx::AddNode(&m, op, inputs, {last});
  };
  using Ints = std::vector<int64_t>;
  *m.mutable_graph()->add_initializer() = onnx::Ints("rows", {n < 1 ? -1 : 5 * n, 4});
  *m.mutable_graph()->add_initializer() = onnx::Ints("steps", turned ? Ints{5, n, 4} : Ints{n, 5, 4});
  if (turned) onnx::SetInts(add("Transpose", ""), "perm", {1, 0, 2});
  if (joined) add("Reshape", "rows");
  add("Dropout", "")->set_name("drop");
  if (joined) add("Reshape", "steps");
  if (turned) onnx::SetInts(add("Transpose", ""), "perm", {1, 0, 2});
  add("Flatten", "");
  add("MatMul", "w");
  onnx::AddOutput(&m, last);
  return m;
}

// Of samples first, first + 1, ... of a batch.
std::vector<double> Losses(const ModelProto& proto, int64_t batch, uint32_t first) {
  const auto model = Build(proto, {.sample = {.input_shape = {5, 4}, .classes = 3}, .batch = batch});
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  GraphInputs in = InputsOf(model->phases[0].train, 3);
  const RefTensor all = Random({8, 5, 4}, "samples");
  std::copy_n(all.data.begin() + first * 20, batch * 20, in.inputs.at("x").data.begin());
  in.inputs.at("labels").data.assign(static_cast<size_t>(batch), 1);
  in.step.first_sample = first;
  return RunGraphReference(model->phases[0].train, in).outputs.at("losses").data;
}

// Where samples lie, and how many are computed at once, is no matter.
TEST(Imported, DropoutIsDrawnBySample) {
  const std::vector<double> expected = Losses(DroppedSteps("plain", 0), 4, 2);
  for (const char* layout : {"plain", "turned", "joined"}) {
    for (const int64_t written : {0, 1}) {
      const ModelProto proto = DroppedSteps(layout, written);
      EXPECT_EQ(Losses(proto, 4, 2), expected) << layout << written;
      for (const int64_t batch : {1, 2}) {
        std::vector<double> parts;
        for (int64_t first = 0; first < 4; first += batch) {
          const std::vector<double> part = Losses(proto, batch, static_cast<uint32_t>(2 + first));
          parts.insert(parts.end(), part.begin(), part.end());
        }
        EXPECT_EQ(parts, expected) << layout << written << " in batches of " << batch;
      }
    }
  }
}

// Rows of what is dropped for micro-batches of 4 from sample `first` on.
std::vector<std::vector<bool>> Masks(const ModelProto& proto, const SampleInfo& sample, uint32_t first) {
  const auto model = Build(proto, {.sample = sample});
  EXPECT_TRUE(model.ok()) << model.status();
  const ir::Graph& graph = model->phases[0].train;
  GraphInputs in = InputsOf(graph, 3);
  in.step.first_sample = first;
  const auto values = RunGraphReference(graph, in).values;
  const std::vector<bool> kept = Kept(values[static_cast<size_t>(Dropouts(graph).at(0)->outputs[0])]);
  constexpr int64_t kRow = 20;
  std::vector<std::vector<bool>> rows;
  for (auto row = kept.begin(); row != kept.end(); row += kRow) rows.emplace_back(row, row + kRow);
  return rows;
}

// What belongs to no sample: weights, and rows of which each holds numbers of several samples.
TEST(Imported, MasksOfNoSampleDoNotRepeat) {
  ModelProto weights = onnx::EmptyModel();
  onnx::AddInput(&weights, "x", {-1, 12});
  AddWeights(&weights, "v", {12, 20});
  AddWeights(&weights, "w", {20, 3});
  onnx::AddNode(&weights, "Dropout", {"v"}, {"dropped"});
  onnx::AddNode(&weights, "MatMul", {"x", "dropped"}, {"a"});
  onnx::AddNode(&weights, "MatMul", {"a", "w"}, {"y"});
  onnx::AddOutput(&weights, "y");
  const std::pair<ModelProto, SampleInfo> cases[] = {{weights, {.input_shape = {12}, .classes = 3}},
                                                     {DroppedSteps("mixed", 0), {.input_shape = {5, 4}, .classes = 3}}};
  for (const auto& [proto, sample] : cases) {
    std::vector<std::vector<bool>> rows;
    for (const uint32_t first : {0, 5, 10}) {
      const auto more = Masks(proto, sample, first);
      rows.insert(rows.end(), more.begin(), more.end());
    }
    const std::set<std::vector<bool>> distinct(rows.begin(), rows.end());
    EXPECT_EQ(distinct.size(), rows.size());
  }
}

// Cuts the last of four ids out of each sample and looks it up; the row is the prediction.
ModelProto LastTokensRow(int type) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 4}, type);
  Proto table = onnx::Floats("table", {4096, 3});
  for (int i = 0; i < table.float_data_size(); ++i) {
    const int row = i / 3;
    table.set_float_data(i, static_cast<float>(i % 3 == 0 ? row / 64 : i % 3 == 1 ? row % 64 : 1));
  }
  *m.mutable_graph()->add_initializer() = table;
  *m.mutable_graph()->add_initializer() = onnx::Ints("three", {3});
  *m.mutable_graph()->add_initializer() = onnx::Ints("four", {4});
  *m.mutable_graph()->add_initializer() = onnx::Ints("one", {1});
  onnx::AddNode(&m, "Slice", {"x", "three", "four", "one"}, {"last"})->set_name("last");
  onnx::SetInt(onnx::AddNode(&m, "Cast", {"last"}, {"ids"}), "to", Proto::INT64);
  onnx::AddNode(&m, "Gather", {"table", "ids"}, {"y"})->set_name("rows");
  onnx::AddOutput(&m, "y");
  return m;
}

TEST(Imported, RulesDoNotRoundIds) {
  const std::vector<float> ids = {257, 2049, 3001, 4095};
  for (const int type : {Proto::FLOAT, Proto::INT64}) {
    for (const char* precision :
         {"mode: FP32", "mode: BF16 rules { match: '*' dtype: BF16 }", "mode: FP16 rules { match: '*' dtype: BF16 }",
          "mode: FP16 rules { match: '*' dtype: FP16 }", "mode: FP8 rules { match: '*' dtype: FP8 }"}) {
      // Which are flattened first.
      const auto model =
          Build(LastTokensRow(type), {.sample = {.input_shape = {2, 2}, .classes = 3}, .precision = precision});
      ASSERT_TRUE(model.ok()) << model.status();
      GraphInputs in = InputsOf(model->eval, 3);
      for (size_t i = 0; i < 4; ++i) in.inputs.at("x").data[4 * i + 3] = ids[i];
      runtime::Machine machine(model->eval, in, 1);
      machine.Run({});
      const TensorView logits = machine.executor().Output("logits").value();
      ASSERT_EQ(logits.size(), 12);
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(64 * logits.as<float>()[3 * i] + logits.as<float>()[3 * i + 1], ids[static_cast<size_t>(i)])
            << precision;
      }
    }
  }
}

}  // namespace
}  // namespace ampd::models
