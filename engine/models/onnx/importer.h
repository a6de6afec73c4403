// Walks a model's graph and translates it node by node. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_IMPORTER_H_
#define AMPD_ENGINE_MODELS_ONNX_IMPORTER_H_

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/models/onnx/emitter.h"
#include "engine/models/onnx/import.h"
#include "engine/models/onnx/initializers.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {

// Names of one graph or function body; those of the graphs around it are seen through `outer`.
struct Scope {
  const Scope* outer = nullptr;
  std::map<std::string, V> values;
  V Find(const std::string& name) const;
};

// How a value came about: to do it again for input values given at import.
struct Recipe {
  const ::onnx::NodeProto* node = nullptr;
  const Rule* rule = nullptr;
  int64_t opset = 0;
  std::vector<V> inputs;
  int output = 0;
};

// A function of the model.
struct Function {
  const ::onnx::FunctionProto* proto = nullptr;
  // By name, for calls that do not give the attribute.
  std::map<std::string, ::onnx::AttributeProto> defaults;
};

// For one import. `model` and `options` outlive it.
class Importer {
 public:
  Importer(const ::onnx::ModelProto& model, const ImportOptions& options);
  absl::StatusOr<ImportedModel> Run();

 private:
  using Opsets = std::map<std::string, int64_t>;

  // `wanted`: by name; the others are not read. Null: all. `main`: of the model itself, not of a branch.
  absl::Status AddInitializers(const ::onnx::GraphProto& graph, const std::set<std::string>* wanted, bool main,
                               Scope* scope);
  absl::StatusOr<V> AddParameter(const ::onnx::TensorProto& proto);
  V AddStatistic(const std::string& name, TensorPtr tensor, bool mean);
  absl::Status AddInput(const ::onnx::ValueInfoProto& info, Scope* scope);
  absl::StatusOr<V> MakeInput(const std::string& name, ir::TensorType type);
  // `wanted`: by node; the others are passed over.
  absl::Status Translate(const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes,
                         const std::vector<bool>& wanted, const Opsets& opsets, Scope* scope);
  absl::Status TranslateNode(const ::onnx::NodeProto& proto, const Opsets& opsets, Scope* scope);
  absl::Status CallRule(const ::onnx::NodeProto& proto, const Opsets& opsets, std::vector<V> inputs, Scope* scope);
  absl::Status CallFunction(const ::onnx::NodeProto& call, const Function& called, const std::vector<V>& inputs,
                            Scope* scope);
  absl::StatusOr<std::vector<V>> InlineGraph(const ::onnx::GraphProto& graph, const Opsets& opsets, const Scope& outer);
  Node::Services ServicesFor(const Opsets& opsets, const Scope* scope);
  TensorPtr Specialise(V v, int depth);
  absl::Status AddOutputs(const Scope& scope);
  absl::Status AddOutput(const Scope& scope, const std::string& name);
  std::string LayerOf(const ::onnx::NodeProto& proto);

  const ::onnx::ModelProto& model_;
  const ImportOptions& options_;
  ImportedModel result_;
  Emitter emitter_;
  // Domain, name and overload.
  using FunctionName = std::tuple<std::string, std::string, std::string>;
  std::map<FunctionName, Function> functions_;
  std::deque<::onnx::NodeProto> copies_;  // nodes of function bodies, their attributes filled in
  std::deque<Recipe> recipes_;
  const InitializerUses uses_;
  // By mean of a batch norm: how many batches it saw.
  std::map<ir::ValueId, V> batches_;
  TensorNames tensor_names_;
  std::map<std::string, int> layers_;
  int64_t nodes_left_;
  int depth_ = 0;
  int calls_ = 0;  // of functions, within each other
};

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_IMPORTER_H_
