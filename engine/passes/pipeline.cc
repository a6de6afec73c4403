#include "engine/passes/pipeline.h"

#include "engine/core/status.h"
#include "engine/ops/op_def.h"

namespace ampd::passes {

absl::StatusOr<ir::Graph> Pipeline::Run(ir::Graph graph, const PassObserver& observer) const {
  AMPD_RETURN_IF_ERROR(Annotate(ops::VerifyGraph(graph), "before the first pass"));
  for (const auto& [name, pass] : passes_) {
    absl::StatusOr<ir::Graph> result = pass(graph);
    if (!result.ok()) return Annotate(result.status(), absl::StrCat("pass ", name));
    AMPD_RETURN_IF_ERROR(Annotate(ops::VerifyGraph(*result), absl::StrCat("after pass ", name)));
    if (observer) observer(name, graph, *result);
    graph = *std::move(result);
  }
  return graph;
}

}  // namespace ampd::passes
