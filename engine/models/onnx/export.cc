#include "engine/models/onnx/export.h"

#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {

absl::StatusOr<std::string> ExportGraph(const ir::Graph& graph, const ir::Graph& twin, const ExportOptions& options) {
  return Exporter(graph, twin, options).Run();
}

}  // namespace ampd::models::onnx
