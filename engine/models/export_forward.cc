#include "engine/models/export_forward.h"

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/models/build_layers.h"
#include "engine/models/imported.h"
#include "engine/models/layers.h"
#include "engine/ops/op_def.h"

namespace ampd::models {

absl::StatusOr<ir::Graph> BuildExportForward(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch) {
  const v1::ModelSpec& model = spec.model();
  if (!model.networks().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model has ", model.networks_size(), " networks, a graph for inference is of one"));
  }
  if (model.has_onnx()) return BuildImportedInference(model, sample, batch);
  if (model.layers().empty()) return absl::FailedPreconditionError("the model has no layers");
  ir::Graph graph;
  AMPD_ASSIGN_OR_RETURN(const LayerOutput last, AddModelLayers(model, sample, batch, /*training=*/false, &graph));
  graph.outputs = {{"output", last.value}};
  AMPD_RETURN_IF_ERROR(ops::VerifyGraph(graph));
  return graph;
}

}  // namespace ampd::models
