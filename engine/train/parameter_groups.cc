#include "engine/train/parameter_groups.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/train/spec_configs.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

// The last group that matches; -1: none.
int GroupOf(const v1::OptimizerSpec& optimizer, absl::string_view parameter) {
  for (int i = optimizer.groups_size() - 1; i >= 0; --i) {
    if (GlobMatches(optimizer.groups(i).match(), parameter)) return i;
  }
  return -1;
}

absl::Status CheckGroups(const v1::OptimizerSpec& optimizer, const runtime::ModelLayout& layout,
                         const std::string& field) {
  std::vector<std::string> names;
  for (const ir::Persistent& parameter : layout.parameters()) names.push_back(parameter.name);
  std::vector<FieldViolation> violations;
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const std::string& match = optimizer.groups(i).match();
    const auto matches = [&match](const std::string& name) { return GlobMatches(match, name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    violations.push_back({absl::StrCat(field, ".groups[", i, "].match"),
                          absl::StrCat("no parameter matches ", Quoted(match), DidYouMean(match, names))});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

runtime::UpdateRange RangeOf(const v1::OptimizerSpec& optimizer, float weight_decay, const ir::Persistent& parameter) {
  runtime::UpdateRange range;
  const bool decays = optimizer.decay_norms_and_biases() || parameter.type.shape.size() >= 2;
  range.weight_decay = decays ? weight_decay : 0;
  const int index = GroupOf(optimizer, parameter.name);
  if (index < 0) return range;
  const v1::ParameterGroup& group = optimizer.groups(index);
  if (group.has_weight_decay()) range.weight_decay = static_cast<float>(group.weight_decay());
  range.learning_rate_scale = static_cast<float>(group.learning_rate_scale());
  return range;
}

}  // namespace

absl::StatusOr<std::vector<runtime::UpdateRange>> UpdateRangesOf(const ResolvedJobSpec& spec,
                                                                 const runtime::ModelLayout& layout,
                                                                 const std::vector<int32_t>& parameters,
                                                                 const std::string& field) {
  const v1::OptimizerSpec& optimizer = spec.proto().optimizer();
  const absl::Status status = CheckGroups(optimizer, layout, field);
  if (!status.ok()) return status;
  const optim::OptimizerConfig config = OptimizerConfigOf(spec);
  std::vector<runtime::UpdateRange> ranges;
  for (size_t n = 0; n < parameters.size(); ++n) {
    const int32_t i = parameters[n];
    runtime::UpdateRange range = RangeOf(optimizer, config.weight_decay, layout.parameters()[i]);
    range.slot = layout.slots()[i];
    const bool alike = n > 0 && parameters[n - 1] == i - 1 && ranges.back().weight_decay == range.weight_decay &&
                       ranges.back().learning_rate_scale == range.learning_rate_scale;
    if (alike && config.kind != optim::OptimizerKind::kLamb) {
      // The gap between the two is zero in every arena, and stays so.
      ranges.back().slot.size = range.slot.offset + range.slot.size - ranges.back().slot.offset;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

}  // namespace ampd::train
