// What a model's operations read its initializers as. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_INITIALIZERS_H_
#define AMPD_ENGINE_MODELS_ONNX_INITIALIZERS_H_

#include <onnx/onnx_pb.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/models/onnx/import.h"

namespace ampd::models::onnx {

// `name` as messages, globs and checkpoints can have it: printable ASCII without quotes and backslashes, not too long.
std::string Printable(absl::string_view name);

// Names parameters and states by what they are in the model, in the model's order.
class TensorNames {
 public:
  // Printable, and unlike those before.
  std::string Take(const std::string& name);

 private:
  // Safetensors keeps one for itself.
  std::set<std::string> taken_ = {"__metadata__"};
};

// Of BatchNormalization.
inline constexpr int kMeanInput = 3;
inline constexpr int kVarianceInput = 4;

// Whose name the exporter's models bear.
inline constexpr char kProducer[] = "ampd";
// Of the exporter's models, in metadata_props: the initializers of one element, one a line. All are parameters or
// states, which nothing else tells: a file written by another may have said it by an operation that was written out.
inline constexpr char kTrainedNumbers[] = "ampd.trained_numbers";

struct InitializerUse {
  const ::onnx::NodeProto* node = nullptr;
  int input = 0;
};
// By name. Points into the graph.
using InitializerUses = std::map<std::string, std::vector<InitializerUse>>;

// Of the graph's initializers, by its nodes and those of graphs within them; a call of a function counts as one use.
InitializerUses UsesOfInitializers(const ::onnx::GraphProto& graph);

// What `outputs` of a graph may depend on: more than they do, rather than less.
struct Reach {
  std::vector<bool> nodes;  // by node of the graph
  std::set<std::string> values;
};
Reach ReachOutputs(const ::onnx::GraphProto& graph, const std::vector<std::string>& outputs);

// Makes initializers of what Constant nodes of the model's own graph hold where weights stand: FLOAT tensors with axes
// that an operation reads so, itself or behind nodes that give them on, or that are added to what such an operation
// gives; but for the states that recurrences begin with. Files of PyTorch and of our exporter are left as they are:
// they have parameters as initializers, and in Constant nodes what a module makes as it goes. Returns the names.
std::set<std::string> LiftConstantWeights(::onnx::ModelProto* model);

// Gives Identities of initializers values of their own where these are not meant to be one: of means and variances that
// batch norms read, and of tensors of one repeated number. Exporters (PyTorch's) write equal tensors once, so that the
// norms of a network that was not trained yet would share what a training moves apart. Other Identities stay: their
// tensors are tied. INVALID_ARGUMENT where the copies are above 256 MiB.
absl::Status GiveIdentitiesTheirOwn(::onnx::GraphProto* graph);

// Whether all uses are as filters of convolutions, or there are none.
bool AreFilters(const std::vector<InitializerUse>& uses);
// Whether all uses, one at least, are as means of batch norms, or all as variances.
bool AreStatistics(const std::vector<InitializerUse>& uses);
// Model::FloatInitializers.
std::vector<FloatInitializer> FloatInitializersOf(const ::onnx::ModelProto& model,
                                                  const std::vector<std::string>& outputs);

// Model::LastOperation.
std::string LastOperationOf(const ::onnx::GraphProto& graph, const std::string& output);

// Model::FrozenWeights.
std::vector<FloatInitializer> FrozenWeightsOf(const ::onnx::ModelProto& model, const std::vector<std::string>& outputs);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_INITIALIZERS_H_
