// Reads ONNX models (https://onnx.ai) into graphs. Thread-safe: objects share nothing. Bytes are hostile: sizes are
// checked before memory is taken, and tensors stored outside the model's file are refused.
#ifndef AMPD_ENGINE_MODELS_ONNX_IMPORT_H_
#define AMPD_ENGINE_MODELS_ONNX_IMPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"

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
};

struct ImportOptions {
  // Shapes of graph inputs, by name; an input that is not listed has the shape that the model declares.
  std::map<std::string, Shape> input_shapes;
  // What is known of graph inputs at import. It is used only where a shape, an axis or another constant of an operation
  // has to follow from an input's value; the graph is then right for these values alone.
  std::map<std::string, std::shared_ptr<const Tensor>> input_values;
  // Which initializers become parameters; null: none. Only f32 ones can.
  std::function<bool(const std::string& initializer)> is_parameter;
  // For training: dropout draws a new mask in every step. (Batch norm in training mode gives its new running statistics
  // as outputs, as ONNX has it; no state keeps them.) Otherwise a Dropout node in training mode that has a seed uses
  // the mask that ONNX's reference evaluator draws from it.
  bool training = false;
  // Elements that all values together may have.
  double max_elements = 1e10;
};

struct ImportedModel {
  // Inputs and outputs are named, typed and laid out as in the model.
  ir::Graph graph;
  // First values of graph.parameters, in memory layout.
  std::vector<std::shared_ptr<const Tensor>> parameter_values;
};

class Model {
 public:
  // INVALID_ARGUMENT when the bytes are no model. Looks at structure only; Import() at what nodes mean.
  static absl::StatusOr<Model> Parse(absl::string_view bytes);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  std::vector<ModelValue> inputs() const;
  std::vector<ModelValue> outputs() const;

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
