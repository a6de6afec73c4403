#include "engine/train/export_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/onnx/import.h"
#include "engine/train/checkpoint.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/files.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/models/onnx/build_model.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;
using Form = v1::ExportModelRequest;

const char kModel[] = "model { layers { name: 'head' dense { units: 2 } } loss { softmax_cross_entropy {} } }";

class ExportModelTest : public ::testing::Test {
 protected:
  // A checkpoint of a dense layer [2, 3] whose first weights are given; its folder.
  std::string Save(const std::vector<float>& weights, bool ema = false) {
    std::vector<float> all = {0, 0, 0, 0, 0, 0};
    std::copy(weights.begin(), weights.end(), all.begin());
    const std::string w(reinterpret_cast<const char*>(all.data()), 4 * all.size()), b(8, '\0');
    const auto from = [](const std::string& bytes) { return [&bytes]() -> absl::string_view { return bytes; }; };
    const std::vector<TensorSource> model = {{"head.weight", DType::kF32, {2, 3}, from(w)},
                                             {"head.bias", DType::kF32, {2}, from(b)}};
    TrainState state;
    state.step = 5;
    state.spec_hash = std::string(64, '1');
    state.phases = {PhaseState{"main", {}, {}}};
    state.onnx_sha256 = onnx_sha256_;
    auto store = CheckpointStore::Open(folder_.path(), 1);
    EXPECT_TRUE(store.ok()) << store.status();
    const auto saved = store->Save(state, model, {}, ema ? model : std::vector<TensorSource>());
    EXPECT_TRUE(saved.ok()) << saved.status();
    return folder_.path() + "/step-000000005";
  }

  absl::Status Export(const std::string& checkpoint, Form::Form form, Form::Dtype dtype, bool ema = false,
                      const std::string& model = kModel) {
    v1::ExportRequest request;
    request.set_checkpoint_dir(checkpoint);
    request.mutable_plan()->add_input_shape(3);
    request.mutable_request()->set_form(form);
    request.mutable_request()->set_dtype(dtype);
    request.mutable_request()->set_ema(ema);
    const ResolvedJobSpec spec = Spec({"data { train { glyphs {} } }", model});
    *request.mutable_spec() = spec.proto();
    return Run(spec, request);
  }

  absl::Status Run(const ResolvedJobSpec& spec, const v1::ExportRequest& request) {
    std::filesystem::remove(path_);
    return ExportModel(spec, request, path_);
  }

  std::string Written() const {
    const auto bytes = ReadFile(path_, 1 << 20);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }

  // Of the file that the checkpoint was trained from.
  std::string onnx_sha256_;
  ScratchFolder folder_, other_;
  const std::string path_ = other_.path() + "/model";
};

TEST_F(ExportModelTest, RoundsToNearestEven) {
  // Between two fp16 numbers: to the even one; 65519 is the largest that is not infinite; below the least: 0.
  const std::string folder = Save({1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519, -0x1p-24f, 0x1p-26f, -0.0f});
  ASSERT_TRUE(Export(folder, Form::SAFETENSORS, Form::FLOAT16).ok());
  const auto file = Safetensors::Parse(Written());
  ASSERT_TRUE(file.ok()) << file.status();
  const Safetensors::Entry& entry = file->entries().at("head.weight");
  EXPECT_EQ(entry.dtype, DType::kF16);
  EXPECT_EQ(entry.shape, (Shape{2, 3}));
  std::vector<uint16_t> bits(6);
  std::memcpy(bits.data(), file->Bytes(entry).data(), 12);
  EXPECT_EQ(bits, (std::vector<uint16_t>{0x3c00, 0x3c02, 0x7bff, 0x8001, 0x0000, 0x8000}));
}

TEST_F(ExportModelTest, NamesWhatBecomesInfinite) {
  const std::string folder = Save({1, 2, 3, 70000});
  const absl::Status half = Export(folder, Form::SAFETENSORS, Form::FLOAT16);
  EXPECT_EQ(half.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(half.message()), HasSubstr("head.weight[3] is 70000, which is infinite in f16"));
  EXPECT_TRUE(Export(folder, Form::SAFETENSORS, Form::BFLOAT16).ok());
  EXPECT_THAT(std::string(Export(Save({3.4e38f}), Form::SAFETENSORS, Form::BFLOAT16).message()), HasSubstr("bf16"));
  // What was infinite in training is so at home.
  EXPECT_TRUE(Export(Save({std::numeric_limits<float>::infinity()}), Form::SAFETENSORS, Form::FLOAT16).ok());
}

TEST_F(ExportModelTest, WritesOnnxThatTheImporterReads) {
  ASSERT_TRUE(Export(Save({1, 2, 3}), Form::ONNX, Form::FLOAT32).ok());
  const auto model = models::onnx::Model::Parse(Written());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->inputs()[0].name, "input");
  EXPECT_EQ(model->inputs()[0].shape, (Shape{-1, 3}));
  EXPECT_EQ(model->outputs()[0].name, "output");
}

// Saves `file` as the job's network, and exports a checkpoint of it for samples of `shape`.
class ExportImportedTest : public ExportModelTest {
 protected:
  models::onnx::Model Exported(const ::onnx::ModelProto& file, const Shape& shape, const std::string& fields = "") {
    const absl::Status status = ExportOf(file, shape, fields);
    EXPECT_TRUE(status.ok()) << status;
    auto model = models::onnx::Model::Parse(Written());
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  absl::Status ExportOf(const ::onnx::ModelProto& file, const Shape& shape, const std::string& fields = "") {
    std::ofstream(folder_.path() + "/net.onnx", std::ios::binary) << file.SerializeAsString();
    const ResolvedJobSpec spec = Spec({"data { train { glyphs {} } } model { onnx { path: 'net.onnx' " + fields +
                                       " } loss { softmax_cross_entropy {} } }"});
    v1::ExportRequest request;
    *request.mutable_spec() = spec.proto();
    request.set_checkpoint_dir(Save({1, 2, 3}));
    request.add_data_roots(folder_.path());
    request.mutable_plan()->mutable_input_shape()->Add(shape.begin(), shape.end());
    request.mutable_request()->set_form(Form::ONNX);
    return Run(spec, request);
  }

  static int CountOps(const models::onnx::Model& model, const models::onnx::ImportOptions& options, ir::OpKind op) {
    const auto imported = model.Import(options);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return static_cast<int>(std::count_if(imported->graph.nodes.begin(), imported->graph.nodes.end(),
                                          [&](const ir::Node& node) { return node.op == op; }));
  }
};

TEST_F(ExportImportedTest, IsOfTheFileThatWasTrained) {
  const auto file = [](const std::string& activation) {
    ::onnx::ModelProto m = models::onnx::EmptyModel();
    models::onnx::AddInput(&m, "x", {-1, 3});
    *m.mutable_graph()->add_initializer() = models::onnx::Floats("head.weight", {2, 3});
    *m.mutable_graph()->add_initializer() = models::onnx::Floats("head.bias", {2});
    models::onnx::AddNode(&m, activation, {"x"}, {"a"});
    models::onnx::SetInt(models::onnx::AddNode(&m, "Gemm", {"a", "head.weight", "head.bias"}, {"y"}), "transB", 1);
    models::onnx::AddOutput(&m, "y");
    return m;
  };
  onnx_sha256_ = Sha256Hex(file("Relu").SerializeAsString());
  const absl::Status same = ExportOf(file("Relu"), {3});
  EXPECT_TRUE(same.ok()) << same;
  const absl::Status other = ExportOf(file("Tanh"), {3});
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("model.onnx.path: net.onnx is another file than the one that"));
  EXPECT_FALSE(std::filesystem::exists(path_));
  // Those of earlier builds do not tell.
  onnx_sha256_.clear();
  EXPECT_TRUE(ExportOf(file("Tanh"), {3}).ok());
}

// Images of [1, 3, 1], which the file takes flat; it gives probabilities, which training takes the softmax from.
TEST_F(ExportImportedTest, KeepsInputOutputAndWhatStandsAtTheEnd) {
  ::onnx::ModelProto file = models::onnx::EmptyModel();
  models::onnx::AddInput(&file, "x", {-1, 3});
  *file.mutable_graph()->add_initializer() = models::onnx::Floats("head.weight", {2, 3});
  *file.mutable_graph()->add_initializer() = models::onnx::Floats("head.bias", {2});
  models::onnx::SetInt(models::onnx::AddNode(&file, "Gemm", {"x", "head.weight", "head.bias"}, {"logits"}), "transB",
                       1);
  models::onnx::AddNode(&file, "Softmax", {"logits"}, {"probabilities"});
  models::onnx::AddOutput(&file, "probabilities");
  models::onnx::ImportOptions options;
  options.input_shapes["x"] = {5, 3};
  for (const std::string output : {"probabilities", "logits"}) {
    const auto model = Exported(file, {1, 3, 1}, output == "logits" ? "outputs: 'logits'" : "");
    ASSERT_EQ(model.inputs().size(), 1u);
    EXPECT_EQ(model.inputs()[0].name, "x");
    EXPECT_EQ(model.inputs()[0].element_type, "FLOAT");
    EXPECT_EQ(model.inputs()[0].shape, (Shape{-1, 3}));
    ASSERT_EQ(model.outputs().size(), 1u);
    EXPECT_EQ(model.outputs()[0].name, output);
    EXPECT_EQ(model.outputs()[0].shape, (Shape{-1, 2}));
    EXPECT_EQ(CountOps(model, options, ir::OpKind::kSoftmax), output == "logits" ? 0 : 1);
  }
}

TEST_F(ExportImportedTest, KeepsAnImagesOrderAndTheTypeOfIds) {
  ::onnx::ModelProto image = models::onnx::EmptyModel();
  models::onnx::AddInput(&image, "image", {1, 3, 4, 5});
  *image.mutable_graph()->add_initializer() = models::onnx::Floats("head.bias", {2});
  *image.mutable_graph()->add_initializer() = models::onnx::Floats("head.weight", {2, 3});
  models::onnx::AddNode(&image, "GlobalAveragePool", {"image"}, {"pooled"});
  models::onnx::SetInt(models::onnx::AddNode(&image, "Flatten", {"pooled"}, {"flat"}), "axis", 1);
  models::onnx::SetInt(models::onnx::AddNode(&image, "Gemm", {"flat", "head.weight", "head.bias"}, {"y"}), "transB", 1);
  models::onnx::AddOutput(&image, "y");
  const auto pooled = Exported(image, {4, 5, 3});
  EXPECT_EQ(pooled.inputs()[0].name, "image");
  EXPECT_EQ(pooled.inputs()[0].shape, (Shape{-1, 3, 4, 5}));

  ::onnx::ModelProto ids = models::onnx::EmptyModel();
  models::onnx::AddInput(&ids, "ids", {-1, 3});
  *ids.mutable_graph()->add_initializer() = models::onnx::Floats("head.weight", {2, 3});
  models::onnx::SetInt(models::onnx::AddNode(&ids, "Cast", {"ids"}, {"whole"}), "to", models::onnx::Proto::INT64);
  models::onnx::AddNode(&ids, "Gather", {"head.weight", "whole"}, {"rows"});
  models::onnx::AddOutput(&ids, "rows");
  const auto gathered = Exported(ids, {3});
  EXPECT_EQ(gathered.inputs()[0].name, "ids");
  EXPECT_EQ(gathered.inputs()[0].element_type, "FLOAT");
  EXPECT_EQ(gathered.outputs()[0].name, "rows");
  EXPECT_EQ(gathered.outputs()[0].shape, (Shape{-1, 3, 3}));
}

TEST_F(ExportModelTest, RefusesWhatTheFormHasNot) {
  const std::string folder = Save({});
  EXPECT_TRUE(absl::IsInvalidArgument(Export(folder, Form::ONNX, Form::BFLOAT16)));
  EXPECT_TRUE(absl::IsInvalidArgument(Export(folder, static_cast<Form::Form>(9), Form::FLOAT32)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Export(folder, Form::SAFETENSORS, Form::FLOAT32, true)));
  EXPECT_TRUE(Export(Save({}, true), Form::SAFETENSORS, Form::FLOAT32, true).ok());
  // Of another model: another shape, another name.
  for (const char* layer : {"name: 'head' dense { units: 4 }", "name: 'tail' dense { units: 2 }"}) {
    const absl::Status other =
        Export(folder, Form::ONNX, Form::FLOAT32, false,
               absl::StrCat("model { layers { ", layer, " } loss { softmax_cross_entropy {} } }"));
    EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr(".weight"));
  }
}

TEST_F(ExportModelTest, ReadsNothingThatIsDamaged) {
  const std::string folder = Save({});
  EXPECT_TRUE(absl::IsNotFound(Export(folder + "1", Form::ONNX, Form::FLOAT32)));
  const std::string path = folder + "/model.safetensors";
  const auto size = std::filesystem::file_size(path);
  for (size_t at = 0; at < size; at += 7) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char was = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(was ^ 0x20)).flush();
    EXPECT_TRUE(absl::IsDataLoss(ReadWeights(folder, false).status())) << at;
    file.seekp(static_cast<std::streamoff>(at));
    file.put(was);
  }
  EXPECT_TRUE(ReadWeights(folder, false).ok());
  std::filesystem::remove(folder + "/MANIFEST");
  EXPECT_TRUE(absl::IsDataLoss(Export(folder, Form::SAFETENSORS, Form::FLOAT32)));
}

// A network that has a place for each step of sequences, and a checkpoint of it after sequences in `buckets`.
class ExportSequencesTest : public ExportModelTest {
 protected:
  static constexpr int64_t kPositions = 24;

  std::string Save(const std::vector<int64_t>& buckets) {
    TrainState state;
    state.step = 5;
    state.spec_hash = std::string(64, '1');
    state.phases = {PhaseState{"main", {}, {}}};
    state.input = {{0}, {1}, {}, 32, buckets};
    std::vector<TensorSource> model;
    const std::vector<std::pair<std::string, Shape>> tensors = {
        {"place.weight", {kPositions, 3}}, {"head.weight", {2, 3}}, {"head.bias", {2}}};
    for (const auto& [name, shape] : tensors) {
      const std::string bytes(static_cast<size_t>(4 * NumElements(shape)), '\0');
      model.push_back({name, DType::kF32, shape, [bytes]() -> absl::string_view { return bytes; }});
    }
    auto store = CheckpointStore::Open(folder_.path(), 1);
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(store->Save(state, model, {}, {}).ok());
    return folder_.path() + "/step-000000005";
  }

  // The steps of the model's input, of samples that are stored with `stored`; or why there is none.
  absl::StatusOr<int64_t> Steps(const std::string& checkpoint, int64_t stored, const std::string& given) {
    v1::ExportRequest request;
    request.set_checkpoint_dir(checkpoint);
    for (const int64_t extent : {stored, int64_t{3}}) request.mutable_plan()->add_input_shape(extent);
    request.mutable_request()->set_form(Form::ONNX);
    const ResolvedJobSpec spec =
        Spec({"data { train { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' } } " + given + " }",
              absl::StrCat("model { layers { name: 'place' positional_embedding { positions: ", kPositions,
                           " } } layers { name: 'head' dense { units: 2 } } loss { softmax_cross_entropy {} } }")});
    const absl::Status status = Run(spec, request);
    if (!status.ok()) return status;
    const auto model = models::onnx::Model::Parse(Written());
    if (!model.ok()) return model.status();
    return model->inputs()[0].shape[1];
  }
};

TEST_F(ExportSequencesTest, AreAsLongAsTheLongestThatWasTrained) {
  const std::string buckets = "length_buckets: [ 8, 24, 1024 ]";
  const auto steps = [&](const std::string& checkpoint, int64_t stored, const std::string& given) {
    const absl::StatusOr<int64_t> result = Steps(checkpoint, stored, given);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(0);
  };
  const std::string trained = Save({8, 24});
  EXPECT_EQ(steps(trained, 24, buckets), 24);
  // Stored with more steps than any sample has.
  EXPECT_EQ(steps(trained, 100, buckets), 24);
  EXPECT_EQ(steps(trained, 100, ""), 24);
  // What earlier builds wrote does not say.
  const std::string earlier = Save({});
  EXPECT_EQ(steps(earlier, 23, buckets), 24);
  EXPECT_EQ(steps(earlier, 5, buckets), 8);
  EXPECT_EQ(steps(earlier, 100, "length_buckets: [ 8, 24 ]"), 24);
  EXPECT_EQ(steps(earlier, 9, ""), 16);
  EXPECT_THAT(std::string(Steps(earlier, 100, buckets).status().message()), HasSubstr("the sequence has 1024 steps"));
}

// A generator of two numbers from noise and a label, and a judge of them.
const char kNetworks[] =
    "model { noise { name: 'input' shape: 2 distribution: UNIFORM }"
    "  networks { name: 'g' inputs: 'noise' inputs: 'label'"
    "    layers { name: 'table' inputs: 'label' embedding { vocabulary: 10 features: 2 } }"
    "    layers { name: 'both' inputs: 'noise' inputs: 'table' mul {} } layers { name: 'fc' dense { units: 784 } } }"
    "  networks { name: 'd' layers { name: 'flat' flatten {} } layers { name: 'fc' dense { units: 1 } } } }"
    "phases { name: 'judge' trains: 'd' calls { name: 'fake' network: 'g' inputs: 'input' inputs: 'labels' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' } calls { name: 'on_data' network: 'd' inputs: 'data' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 }"
    "  losses { input: 'on_data' loss { sigmoid_cross_entropy {} } target: 1 } }"
    "phases { name: 'draw' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'input' inputs: 'labels' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 } }";

class ExportNetworkTest : public ExportModelTest {
 protected:
  void SetUp() override {
    TrainState state;
    state.step = 5;
    state.spec_hash = std::string(64, '1');
    state.phases = {PhaseState{"judge", {}, {}}, PhaseState{"draw", {}, {}}};
    std::vector<TensorSource> model;
    const std::vector<std::pair<std::string, Shape>> tensors = {{"g.table.weight", {10, 2}},
                                                                {"g.fc.weight", {784, 2}},
                                                                {"g.fc.bias", {784}},
                                                                {"d.fc.weight", {1, 784}},
                                                                {"d.fc.bias", {1}}};
    for (const auto& [name, shape] : tensors) {
      const std::string bytes(static_cast<size_t>(4 * NumElements(shape)), '\0');
      model.push_back({name, DType::kF32, shape, [bytes]() -> absl::string_view { return bytes; }});
    }
    auto store = CheckpointStore::Open(folder_.path(), 1);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(store->Save(state, model, {}, {}).ok());
  }

  absl::Status Export(const std::string& network, Form::Form form) {
    v1::ExportRequest request;
    request.set_checkpoint_dir(folder_.path() + "/step-000000005");
    for (int64_t extent : {28, 28, 1}) request.mutable_plan()->add_input_shape(extent);
    request.mutable_request()->set_form(form);
    request.mutable_request()->set_network(network);
    const ResolvedJobSpec spec = Spec({"data { train { glyphs {} } }", kNetworks});
    *request.mutable_spec() = spec.proto();
    return Run(spec, request);
  }

  // Of the inputs of the model that was written.
  std::map<std::string, std::string> Inputs() const {
    std::map<std::string, std::string> inputs;
    const auto model = models::onnx::Model::Parse(Written());
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return inputs;
    for (const models::onnx::ModelValue& value : model->inputs()) {
      inputs[value.name] = absl::StrCat(value.element_type, " ", ShapeString(value.shape));
    }
    return inputs;
  }
};

TEST_F(ExportNetworkTest, WritesOneOfSeveral) {
  using Names = std::map<std::string, std::string>;
  // Noise may be called as the data is.
  const Names of_noise = {{"noise.input", "FLOAT [-1, 2]"}, {"labels", "INT64 [-1]"}};
  ASSERT_TRUE(Export("g", Form::ONNX).ok());
  EXPECT_EQ(Inputs(), of_noise);
  EXPECT_THAT(Written(), HasSubstr("uniform in [-1, 1)"));
  EXPECT_THAT(Written(), HasSubstr("judge.fake"));
  // The judge of data, though it is called on drawings first.
  ASSERT_TRUE(Export("d", Form::ONNX).ok());
  EXPECT_THAT(Written(), HasSubstr("judge.on_data"));
  EXPECT_EQ(Inputs(), (Names{{"input", "FLOAT [-1, 1, 28, 28]"}}));
  ASSERT_TRUE(Export("draw.on_fake", Form::ONNX).ok());
  EXPECT_EQ(Inputs(), of_noise);
}

TEST_F(ExportNetworkTest, WritesItsWeightsUnderTheirOwnNames) {
  ASSERT_TRUE(Export("g", Form::SAFETENSORS).ok());
  const auto file = Safetensors::Parse(Written());
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const auto& [name, entry] : file->entries()) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("table.weight", "fc.weight", "fc.bias"));
  ASSERT_TRUE(Export("", Form::SAFETENSORS).ok());
  EXPECT_EQ(Safetensors::Parse(Written())->entries().size(), 5u);
}

TEST_F(ExportNetworkTest, RefusesWhatItHasNot) {
  EXPECT_EQ(Export("", Form::ONNX).code(), absl::StatusCode::kFailedPrecondition);
  for (const Form::Form form : {Form::ONNX, Form::SAFETENSORS}) {
    const absl::Status unknown = Export("gg", form);
    EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(unknown.message()), HasSubstr("'gg'; it has g"));
  }
  // Weights belong to a network, not to its calls.
  EXPECT_TRUE(absl::IsInvalidArgument(Export("judge.fake", Form::SAFETENSORS)));
}

}  // namespace
}  // namespace ampd::train
