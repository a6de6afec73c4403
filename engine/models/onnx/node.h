// One node of a model, as the rules that translate it see it, and the table of rules. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_NODE_H_
#define AMPD_ENGINE_MODELS_ONNX_NODE_H_

#include <onnx/onnx_pb.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/models/onnx/emitter.h"
#include "engine/models/onnx/import.h"

namespace ampd::models::onnx {

class Node {
 public:
  // What a rule may ask of the importer.
  struct Services {
    const ImportOptions* options = nullptr;
    // The value that `v` has for the input values given at import; null when unknown.
    std::function<TensorPtr(V)> specialise;
    // Translates `graph` (a branch of the node) in the node's scope; its outputs.
    std::function<absl::StatusOr<std::vector<V>>(const ::onnx::GraphProto& graph)> inline_graph;
    // The value named `name` in the node's scope; null when there is none.
    std::function<V(const std::string& name)> find;
    // The state that counts the batches of the batch norm whose mean this is; null where the mean is no state.
    std::function<V(V mean)> batches;
    // PyTorch wrote the model.
    bool torch = false;
    // The node stands in a function of the model, whose calls no one looks through.
    bool in_function = false;
    // Model-wide random seed source for nodes that have none: the node's layer name.
    std::string layer;
  };

  Node(const ::onnx::NodeProto& proto, int64_t opset, std::vector<V> inputs, Emitter* emitter, Services services)
      : e(*emitter),
        proto_(proto),
        opset_(opset),
        inputs_(std::move(inputs)),
        services_(std::move(services)),
        outputs_(static_cast<size_t>(proto.output_size()), nullptr) {}

  Emitter& e;

  // Version of the operator set of the node's domain.
  int64_t opset() const { return opset_; }
  const std::string& op() const { return proto_.op_type(); }
  const ImportOptions& options() const { return *services_.options; }
  const Services& services() const { return services_; }

  // INVALID_ARGUMENT "[OpType] message".
  absl::Status Bad(const std::string& message) const;
  // UNIMPLEMENTED "[OpType] message".
  absl::Status Unsupported(const std::string& message) const;

  int inputs() const { return static_cast<int>(inputs_.size()); }
  bool Has(int i) const { return i < inputs() && inputs_[i] != nullptr; }
  V in(int i) const { return inputs_[i]; }
  V operator[](int i) const { return inputs_[i]; }
  const Shape& shape(int i) const { return inputs_[i]->type.shape; }
  DType dtype(int i) const { return inputs_[i]->type.dtype; }
  int rank(int i) const { return static_cast<int>(inputs_[i]->type.shape.size()); }

  // Input `i`, which has to be known at import: FAILED_PRECONDITION when it is not.
  absl::StatusOr<TensorPtr> Known(int i) const;
  absl::StatusOr<std::vector<int64_t>> KnownInts(int i) const;

  const ::onnx::AttributeProto* Attribute(const std::string& name) const;
  int64_t Int(const std::string& name, int64_t fallback) const;
  double Float(const std::string& name, double fallback) const;
  std::string String(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> Ints(const std::string& name) const;
  std::vector<double> Floats(const std::string& name) const;
  std::vector<std::string> Strings(const std::string& name) const;
  // `axis` in 0..rank-1, from one that may be negative.
  absl::StatusOr<int> Axis(int64_t axis, int rank) const;
  // As Axis, for several without repeats, in the order given.
  absl::StatusOr<std::vector<int64_t>> Axes(const std::vector<int64_t>& axes, int rank) const;

  int outputs() const { return proto_.output_size(); }
  bool Wants(int i) const { return i < proto_.output_size() && !proto_.output(i).empty(); }
  absl::Status Out(int i, V v);
  // The one output.
  absl::Status Out(V v) { return Out(0, v); }
  const std::vector<V>& results() const { return outputs_; }

 private:
  const ::onnx::NodeProto& proto_;
  int64_t opset_;
  std::vector<V> inputs_;
  Services services_;
  std::vector<V> outputs_;
};

struct Rule {
  const char* op;
  absl::Status (*translate)(Node& node);
  int least_inputs;         // inputs that have to be there
  bool takes_empty = true;  // inputs may have no elements
};

// `rules` for operations whose inputs must have elements.
std::vector<Rule> NeverEmpty(std::vector<Rule> rules);

// One list a family, in the file of the same name.
std::vector<Rule> ElementwiseRules();
std::vector<Rule> MovementRules();
std::vector<Rule> ShapeRules();
std::vector<Rule> ReductionRules();
std::vector<Rule> ProductRules();
std::vector<Rule> EinsumRules();
std::vector<Rule> WindowRules();
std::vector<Rule> ResizeRules();
std::vector<Rule> SelectionRules();
std::vector<Rule> NormRules();
std::vector<Rule> AttentionRules();
std::vector<Rule> RecurrentRules();
std::vector<Rule> LossRules();
std::vector<Rule> DropoutRules();
// Domain ai.onnx.preview.training.
std::vector<Rule> TrainingRules();

// The rule of an operation ("" and "ai.onnx" are one domain), or null.
const Rule* FindRule(const std::string& domain, const std::string& op);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_NODE_H_
