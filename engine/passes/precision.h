// Mixed precision: the only place that inserts casts, by each op's precision class.
#ifndef AMPD_ENGINE_PASSES_PRECISION_H_
#define AMPD_ENGINE_PASSES_PRECISION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/dtype.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// An exception for the layers that `match` (a glob: '*' and '?') names.
struct PrecisionRule {
  std::string match;
  DType dtype = DType::kF32;
};

struct PrecisionPolicy {
  // What ALLOW ops compute in: f32, f16 or bf16.
  DType compute = DType::kF32;
  std::vector<PrecisionRule> rules;  // the last match holds

  DType ForLayer(absl::string_view layer) const;
  bool HasRule(absl::string_view layer) const;
};

// '*' any run of characters, '?' one character.
bool GlobMatch(absl::string_view pattern, absl::string_view text);

// Runs on an f32 forward graph. ALLOW ops compute in the policy's dtype; INFER ops follow their data inputs (the
// widest, where they differ), or the rule of their layer; DENY ops compute in f32. A value is cast at most once to each
// dtype, and results named as graph outputs are f32.
absl::StatusOr<ir::Graph> ApplyPrecision(const ir::Graph& forward, const PrecisionPolicy& policy);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_PRECISION_H_
