// Passes in order, each verified.
#ifndef AMPD_ENGINE_PASSES_PIPELINE_H_
#define AMPD_ENGINE_PASSES_PIPELINE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

using Pass = std::function<absl::StatusOr<ir::Graph>(ir::Graph)>;

// Sees the graph before and after a pass: to dump or to compare.
using PassObserver = std::function<void(const std::string& pass, const ir::Graph& before, const ir::Graph& after)>;

class Pipeline {
 public:
  Pipeline& Add(std::string name, Pass pass) {
    passes_.emplace_back(std::move(name), std::move(pass));
    return *this;
  }
  // Runs the passes in order and verifies the graph after each. An error names the pass.
  absl::StatusOr<ir::Graph> Run(ir::Graph graph, const PassObserver& observer = nullptr) const;

 private:
  std::vector<std::pair<std::string, Pass>> passes_;
};

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_PIPELINE_H_
