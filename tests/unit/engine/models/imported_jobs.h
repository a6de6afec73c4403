// Jobs whose network is an ONNX model, built in memory.
#ifndef AMPD_TESTS_UNIT_ENGINE_MODELS_IMPORTED_JOBS_H_
#define AMPD_TESTS_UNIT_ENGINE_MODELS_IMPORTED_JOBS_H_

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/models/imported_files.h"
#include "engine/models/model.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models {

using onnx::Proto;
using testing::GraphInputs;
using testing::RefTensor;
using testing::RunGraphReference;
using ModelProto = ::onnx::ModelProto;

inline const SampleInfo kImages{.input_shape = {6, 5, 2}, .classes = 3};

// Numbers of a file, in [low, high), drawn by the name.
inline Proto Weights(const std::string& name, const std::vector<int64_t>& shape, float low = -1, float high = 1) {
  Proto proto = onnx::Floats(name, shape);
  RngSequence rng(7, name);
  for (float& v : *proto.mutable_float_data()) v = low + (high - low) * rng.NextUniform();
  return proto;
}

inline void AddWeights(ModelProto* m, const std::string& name, const std::vector<int64_t>& shape, float low = -1,
                       float high = 1) {
  *m->mutable_graph()->add_initializer() = Weights(name, shape, low, high);
}

inline ResolvedJobSpec Resolve(const std::string& fields, const std::string& precision, const std::string& loss) {
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

inline absl::StatusOr<Model> Build(const ModelProto& proto, const Job& job = {}) {
  auto file = onnx::Model::Parse(proto.SerializeAsString());
  if (!file.ok()) return file.status();
  ProvideOnnxFile("a", std::make_shared<const onnx::Model>(*std::move(file)));
  return BuildModel(Resolve(job.fields, job.precision, job.loss), job.sample, job.batch, job.batch);
}

// First values of the model built last.
inline ImportedValues Values() { return FindImportedValues("a"); }

// What is wrong, with its field.
inline std::string Refused(const ModelProto& proto, const Job& job = {}) {
  const auto model = Build(proto, job);
  EXPECT_FALSE(model.ok());
  const auto list = FieldViolationsOf(model.status());
  return list.size() == 1 ? list[0].field + ": " + list[0].description : model.status().ToString();
}

inline RefTensor Random(const Shape& shape, const std::string& name) {
  RngSequence rng(3, name);
  RefTensor tensor = testing::Filled(shape);
  for (double& v : tensor.data) v = 2 * rng.NextUniform() - 1;
  return tensor;
}

// Random samples and labels, and the numbers of the file.
inline GraphInputs InputsOf(const ir::Graph& graph, int64_t classes) {
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

// conv - batch norm - relu - pool - reshape to `flat` - linear - softmax. `batch` below 1: open.
inline ModelProto Convnet(int64_t batch, const std::vector<int64_t>& flat) {
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

inline int CountOps(const ir::Graph& graph, ir::OpKind op) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const ir::Node& node) { return node.op == op; }));
}

inline std::vector<std::string> Names(const std::vector<ir::Persistent>& list) {
  std::vector<std::string> names;
  for (const ir::Persistent& p : list) names.push_back(p.name);
  return names;
}

}  // namespace ampd::models

#endif  // AMPD_TESTS_UNIT_ENGINE_MODELS_IMPORTED_JOBS_H_
