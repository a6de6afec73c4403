#include "engine/backend/cuda/launch_choice.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/autotune_cache.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr char kResident[] = "resident", kCaptured[] = "captured";

void AppendTypes(const std::vector<runtime::PlannedTensor>& tensors, std::string* text) {
  for (const runtime::PlannedTensor& tensor : tensors) {
    absl::StrAppend(text, " ", DTypeName(tensor.type.dtype), ShapeString(tensor.type.shape));
  }
}

// What the time of a step depends on, or that of its update.
std::string Describe(const runtime::StepLoopConfig& config) {
  const runtime::StepLoopPhase& phase = config.phases.front();
  std::string text = absl::StrCat("optimizer ", static_cast<int>(phase.update.config.kind));
  for (const runtime::PlanStep& step : phase.executors.front()->plan().steps) {
    absl::StrAppend(&text, "\n", ir::OpName(step.op));
    for (const ir::FusedStep& part : step.fused) absl::StrAppend(&text, " ", ir::OpName(part.op));
    AppendTypes(step.inputs, &text);
    absl::StrAppend(&text, " ->");
    AppendTypes(step.outputs, &text);
  }
  return text;
}

// FNV-1a of 64 bits: the same in every process.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace

absl::StatusOr<bool> IsResidentFaster(const Context& context, const runtime::StepLoopConfig& config,
                                      const std::function<absl::Status()>& captured,
                                      const std::function<absl::Status()>& resident) {
  AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(context));
  if (!may_measure) return false;
  const std::string key = AutotuneKey(context, absl::StrCat("ampd ", AMPD_VERSION),
                                      absl::StrCat("steps ", absl::Hex(HashOf(Describe(config)), absl::kZeroPad16)));
  const absl::optional<std::string> known = context.autotune()->Find(key);
  if (known && (*known == kResident || *known == kCaptured)) return *known == kResident;
  const auto run = [&](int candidate) { return candidate == 0 ? captured() : resident(); };
  AMPD_ASSIGN_OR_RETURN(const int fastest, FastestOf(context, 2, run));
  context.autotune()->Put(key, fastest == 0 ? kCaptured : kResident);
  return fastest != 0;
}

}  // namespace ampd::cuda
