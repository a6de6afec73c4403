// Runs an imported model once on the CPU backend.
#ifndef AMPD_TESTS_CONFORMANCE_GRAPH_RUNNER_H_
#define AMPD_TESTS_CONFORMANCE_GRAPH_RUNNER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/core/tensor.h"
#include "engine/models/onnx/import.h"

namespace ampd::testing {

// The graph's outputs for `inputs`, by name; inputs that the graph has not are ignored.
absl::StatusOr<std::map<std::string, Tensor>> RunImported(
    const models::onnx::ImportedModel& model, const std::map<std::string, std::shared_ptr<const Tensor>>& inputs,
    int threads);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_CONFORMANCE_GRAPH_RUNNER_H_
