// Writes graphs as ONNX models (https://onnx.ai, opset 17). Thread-safe: calls share nothing.
#ifndef AMPD_ENGINE_MODELS_ONNX_EXPORT_H_
#define AMPD_ENGINE_MODELS_ONNX_EXPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/ir/graph.h"

namespace ampd::models::onnx {

// An input or output of the graph, and what it is in the model.
struct ExportedValue {
  // In the graph's inputs or outputs.
  std::string value;
  // In the model; unique among inputs and outputs.
  std::string name;
  // Axis d of the model's tensor is axis axes[d] of the graph's. Empty: the same order.
  std::vector<int64_t> axes;
  // For people, in the model. May be empty.
  std::string description;
  // Of an input: declared as the graph has it, whatever reads it.
  bool of_its_type = false;
};

struct ExportOptions {
  // Of the model's graph.
  std::string name = "ampd";
  // Of it, for people. May be empty.
  std::string description;
  std::string producer_version;
  // Every input that the outputs depend on. Axis 0 of the first is the batch. One that is only read as integers, or
  // as numbers of a table's rows, is declared INT64, others as the graph has them (`of_its_type`: in any case).
  std::vector<ExportedValue> inputs;
  std::vector<ExportedValue> outputs;
  // The bytes of a parameter or state of the graph as on disk (ir::DiskLayout), little-endian; read before the next
  // call. Its errors end the export.
  std::function<absl::StatusOr<absl::string_view>(const ir::Persistent& tensor)> bytes;
};

// `graph` is a forward graph, before any pass. `twin` is the same at another batch: extents in which the two differ
// follow the batch, which the model leaves open ("batch"); a graph that is its own twin gives a model of fixed shapes.
//
// Images are [batch, channels, height, width] between the model's nodes, as ONNX has them, wherever a node reads or
// writes them so. A parameter or state that the outputs depend on becomes an initializer of its name, laid out as on
// disk; those of an LSTM or GRU that one node alone reads are in ONNX's order of gates, the two biases as one, named
// "<layer>.bias_l0" after "<layer>.bias_ih_l0".
//
// FAILED_PRECONDITION, naming layer, operation and node, for what ONNX cannot say, and for a model of 2 GiB and more,
// which a file of its format cannot hold. INTERNAL when graph and twin do not belong together.
absl::StatusOr<std::string> ExportGraph(const ir::Graph& graph, const ir::Graph& twin, const ExportOptions& options);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_EXPORT_H_
