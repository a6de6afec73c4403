// The state behind delayed scaling: for each of a marked node's operands a, b and the gradient of its output
// the amax of the last runs, how many there were, and the scale that follows from them.
#ifndef AMPD_ENGINE_PASSES_FP8_SCALES_H_
#define AMPD_ENGINE_PASSES_FP8_SCALES_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace ampd::passes {

// As Transformer Engine's DelayedScaling recipe: margin 0, maximum over the history.
inline constexpr int kAmaxHistory = 1024;
inline constexpr int kFp8Margin = 0;

inline constexpr const char* kFp8Gradient = "grad";
inline constexpr const char* kFp8Operands[] = {"a", "b", kFp8Gradient};

// Names of the states of `operand` ("a", "b" or "grad") of forward node `node`.
inline std::string Fp8HistoryName(const std::string& node, const std::string& operand) {
  return absl::StrCat(node, ".", operand, ".amax_history");
}
inline std::string Fp8CountName(const std::string& node, const std::string& operand) {
  return absl::StrCat(node, ".", operand, ".amax_count");
}
inline std::string Fp8ScaleName(const std::string& node, const std::string& operand) {
  return absl::StrCat(node, ".", operand, ".scale");
}

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_FP8_SCALES_H_
