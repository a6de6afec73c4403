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

// What ALLOW ops compute in.
struct ComputeType {
  // NOLINTNEXTLINE(google-explicit-constructor): a dtype says it all but for TF32.
  constexpr ComputeType(DType dtype, bool tf32 = false) : dtype(dtype), tf32(tf32) {}

  // f32, f16 or bf16 operands; kF8E4M3: 8-bit operands with delayed scaling, e4m3fn forward and e5m2 for gradients,
  // and bf16 around them.
  DType dtype;
  // With f32: operands are rounded to TF32's 10 fraction bits.
  bool tf32;
};

inline constexpr ComputeType kTf32{DType::kF32, true};
inline constexpr ComputeType kFp8{DType::kF8E4M3};

// An exception for the layers that `match` (a glob: '*' and '?') names: what their ALLOW ops compute in, and their
// INFER ops, which have no 8-bit or TF32 kernels (bf16 and f32 then).
struct PrecisionRule {
  std::string match;
  ComputeType compute = DType::kF32;
};

struct PrecisionPolicy {
  ComputeType compute = DType::kF32;
  std::vector<PrecisionRule> rules;  // the last match holds
  // FP8: the first scale of each gradient, until its history has one, is two to this power. A loss scale does the same
  // for all of them: with one, 0.
  int first_gradient_exponent = 14;
  // Names of the networks that the graph's layers are of, "NETWORK.LAYER". Empty: all of them are of one.
  std::vector<std::string> networks;

  ComputeType ForLayer(absl::string_view layer) const;
  bool HasRule(absl::string_view layer) const;
};

// '*' any run of characters, '?' one character.
bool GlobMatch(absl::string_view pattern, absl::string_view text);

// Runs on an f32 forward graph. ALLOW ops compute as the policy says. INFER ops compute as a rule of their layer says,
// whatever comes in; without a rule they follow their data inputs (the widest, where they differ). DENY ops compute in
// f32 under any rule, and so do INFER ops whose results become integers, or that compare ids (exact_numbers.h): token
// ids come as f32 and are not rounded; and INFER ops with a constant that would be another number in 16 bits, infinite
// as a mask's -1e9 in f16, or 0. The loss belongs to no layer. A value is cast at most once to each dtype, and
// results named as graph outputs are f32.
//
// TF32 and FP8 are marks on ALLOW nodes (engine/ops/compute.h), which their gradient nodes inherit. FP8 marks bilinear
// ops alone, and adds the state of their scales; other ALLOW ops (attention, recurrences) and, unless a rule of theirs
// says FP8, the layers at the ends of a network compute in bf16: those with an ALLOW op (embeddings among them) that
// depends on none of the network's others, or that none of the others depends on.
absl::StatusOr<ir::Graph> ApplyPrecision(const ir::Graph& forward, const PrecisionPolicy& policy);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_PRECISION_H_
