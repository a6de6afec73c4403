// Reads ONNX models (https://onnx.ai) into graphs. Thread-safe: objects share nothing. Bytes are hostile: sizes are
// checked before memory is taken, and tensors stored outside the model's file are read by who gives Parse() the means.
#ifndef AMPD_ENGINE_MODELS_ONNX_IMPORT_H_
#define AMPD_ENGINE_MODELS_ONNX_IMPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"
#include "proto/onnx/external_data.h"

namespace ampd::models::onnx {

struct NamedTensor {
  std::string name;
  std::shared_ptr<const Tensor> tensor;
};

// A serialized TensorProto, as the data sets of ONNX's backend tests hold them. UNIMPLEMENTED for element types that
// the engine has not.
absl::StatusOr<NamedTensor> ParseTensor(absl::string_view bytes);

// An input or output as the model declares it.
struct ModelValue {
  std::string name;
  // ONNX's name of the element type, e.g. "FLOAT"; of a type newer than ONNX 1.12 its number; "SEQUENCE", "OPTIONAL",
  // "MAP" for what is no tensor.
  std::string element_type;
  bool has_shape = false;
  Shape shape;               // -1 where the model leaves an extent open
  bool initialized = false;  // inputs: has an initializer, so that a caller may leave it out
  bool read = true;          // inputs: what was asked for may depend on it
};

// An f32 initializer with elements, as a training takes it, as far as a file tells weights from tables and constants.
struct FloatInitializer {
  std::string name;
  // As Import() names the parameter; empty where it is none.
  std::string tensor;
  Shape shape;
  bool number = false;  // of one element
  // An operation reads it where its weights stand (a factor of a product, a filter, a norm's scale, ...), or adds it as
  // a vector, as biases are.
  bool weight = false;
  // What a training from new weights draws: all but single numbers that are read as no weight, whose meaning (a gate, a
  // temperature) no rule knows.
  bool drawn = true;
  // Trained, but for what a job freezes. All are but masks (what holds infinities, and what no operation reads as a
  // weight and holds nothing but zeros and 1e3 and more, or as far below 0) and single numbers; of these, which are
  // constants of formulas as a rule, those that are read as weights or biases, whose exponential, sigmoid, softplus or
  // hyperbolic tangent is taken (of a constant a tool would write the result), and that are named as PyTorch names what
  // modules hold. It names buffers so too: what is compared, clipped or masked with, an addend below 1e-3, and 1e3 and
  // more are constants whatever their name.
  bool parameter = false;
  // The file has it in a Constant node (initializers.h).
  bool constant_node = false;
};

struct ImportOptions {
  // Shapes of graph inputs, by name; an input that is not listed has the shape that the model declares.
  std::map<std::string, Shape> input_shapes;
  // What is known of graph inputs at import. It is used only where a shape, an axis or another constant of an operation
  // has to follow from an input's value; the graph is then right for these values alone.
  std::map<std::string, std::shared_ptr<const Tensor>> input_values;
  // Which initializers become parameters; null: none. Only f32 ones can. An operation that needs a constant takes what
  // the file says.
  std::function<bool(const std::string& initializer)> is_parameter;
  // For training: dropout draws a new mask in every step. (Batch norm in training mode gives its new running statistics
  // as outputs, as ONNX has it; no state keeps them, unless there is `updates_statistic`.) Otherwise a Dropout node in
  // training mode that has a seed uses the mask that ONNX's reference evaluator draws from it.
  bool training = false;
  // Given for a network that a job trains and evaluates: dropout and batch norm do what `training` says, whatever their
  // nodes say, and parameters that batch norms alone read, as mean and variance, are states instead, with a count of
  // batches beside them as PyTorch keeps one. Tells, by a state's name in the graph, whether training moves it. A batch
  // norm whose mean and variance both move normalises by its batch and moves them while training; every other one, and
  // all in evaluation, normalise by what they are.
  std::function<bool(const std::string& state)> updates_statistic;
  // Inputs, and outputs of 4 axes, that the graph has as the engine has images, [N, H, W, C] for [N, C, H, W]. An image
  // of input_shapes is given in ONNX's order all the same.
  std::set<std::string> image_inputs;
  std::set<std::string> image_outputs;
  // Any values of the model's own graph, in place of its outputs; nodes and initializers that none of them depends on
  // are then not looked at, and inputs that have no shape in input_shapes. Empty: its outputs.
  std::vector<std::string> outputs;
  // The model was written down for batches of `written_batch`, >= 1, and its inputs are of `batch`, >= 1: a Reshape
  // whose constant shape begins with the one, of a tensor that begins with the other, begins with the other. 0: batches
  // are as written.
  int64_t written_batch = 0;
  int64_t batch = 0;
  // Elements that all values together may have. Those that are known at import, and so take memory, may take 8 bytes
  // for each of them, 4 GiB at most, and besides that four times the model's own size.
  double max_elements = 1e10;
};

struct ImportedModel {
  // Inputs and outputs are named, typed and laid out as in the model, unless the options say otherwise. Parameters,
  // states and layers are named as initializers and nodes are, as far as they can be: names are printable ASCII without
  // quotes and backslashes, at most 200 bytes, and differ.
  ir::Graph graph;
  // First values of graph.parameters, in memory layout.
  std::vector<std::shared_ptr<const Tensor>> parameter_values;
  // First values of graph.states; null: zero.
  std::vector<std::shared_ptr<const Tensor>> state_values;
  // Nodes of the graph say which layer they belong to: layers by name, in the model's order, with the ONNX operation.
  std::vector<std::pair<std::string, std::string>> layers;
};

class Model {
 public:
  // INVALID_ARGUMENT when the bytes are no model. Looks at structure only; Import() at what nodes mean. Weights in
  // Constant nodes, and Identities of initializers that only look alike, become initializers (initializers.h). What
  // tensors have in other files is taken by `read`, whose errors are given on, of the model's own initializers those
  // that `outputs` may depend on (empty: all). A tensor whose file is not there, as none is without `read`, is refused
  // by what reads it.
  static absl::StatusOr<Model> Parse(absl::string_view bytes, const ReadPart& read = nullptr,
                                     const std::vector<std::string>& outputs = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // `outputs` as in ImportOptions: whose inputs are told to be `read`. Empty: all are.
  std::vector<ModelValue> inputs(const std::vector<std::string>& outputs = {}) const;
  std::vector<ModelValue> outputs() const;
  // In the model's order; `outputs` as in ImportOptions: those that they may depend on. Empty: all. But for what has to
  // be a constant, as the scales of a Resize.
  std::vector<FloatInitializer> FloatInitializers(const std::vector<std::string>& outputs = {}) const;
  // Tensors of floats that stand where weights do but are none of these, so that no training moves them: of other types
  // than FLOAT (behind a Cast), in Constant nodes, in branches. But for what does nothing, as a norm's scales of 1.
  // Those within the model's functions are not looked at.
  std::vector<FloatInitializer> FrozenWeights(const std::vector<std::string>& outputs = {}) const;
  // The operation that value `output` of the model's own graph ends in, but for those that give elements on as they are
  // (Reshape, Transpose, Identity, ...); "" where none writes it.
  std::string LastOperation(const std::string& output) const;
  // The names of those that are parameters.
  std::set<std::string> Trainable(const std::vector<std::string>& outputs = {}) const;

  // Errors name the node. UNIMPLEMENTED: an operation, element type or spatial rank that the engine has not;
  // FAILED_PRECONDITION: a shape or constant follows from an input whose value is not in `options`; RESOURCE_EXHAUSTED:
  // more elements than `options` allow; INVALID_ARGUMENT: the model contradicts itself or ONNX.
  absl::StatusOr<ImportedModel> Import(const ImportOptions& options) const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_IMPORT_H_
