#include "proto/spec/sweep.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/spec/alternatives.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/violations.h"
#include "proto/spec/yaml.h"
#include "proto/spec/yaml_reader.h"

namespace ampd {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

constexpr size_t kMaxPathBytes = 1000;
constexpr size_t kShownValuesBytes = 200;

void CheckForm(const v1::SweepSpec& sweep, Violations* violations) {
  if (sweep.grid().empty() == sweep.list().empty()) {
    violations->Add("sweep", sweep.grid().empty() ? "needs values: grid or list" : "has both grid and list; give one");
  }
  for (const auto& [path, values] : sweep.grid()) {
    if (values.values().empty()) violations->Add(JoinPath("sweep.grid", path), "needs a value at least");
  }
  if (sweep.has_max_parallel()) violations->CheckInteger("sweep.max_parallel", sweep.max_parallel(), 1, INT32_MAX);
}

}  // namespace

absl::StatusOr<SweepExpansion> SweepExpansion::Of(v1::JobSpec spec) {
  SweepExpansion expansion;
  const v1::SweepSpec sweep = std::move(*spec.mutable_sweep());
  spec.clear_sweep();
  expansion.base_ = std::move(spec);
  Violations violations;
  CheckForm(sweep, &violations);
  int64_t points = sweep.list_size();
  expansion.is_grid_ = sweep.list().empty();
  if (expansion.is_grid_) points = 1;
  for (const auto& [path, values] : sweep.grid()) {
    expansion.grid_.push_back({path, values});
    // Both factors are below 2^31, and the product is not taken further once it is too large.
    if (points <= kMaxPoints) points *= values.values_size();
  }
  if (points > kMaxPoints) {
    const char* field = expansion.is_grid_ ? "sweep.grid" : "sweep.list";
    violations.Add(field, absl::StrCat("must have at most ", kMaxPoints, " points, has ",
                                       expansion.is_grid_ ? "more" : absl::StrCat(points)));
  }
  if (!violations.empty()) return InvalidFields(violations.list());
  std::sort(expansion.grid_.begin(), expansion.grid_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  expansion.list_.assign(sweep.list().begin(), sweep.list().end());
  expansion.count_ = static_cast<int>(points);
  expansion.max_parallel_ = sweep.max_parallel();
  return expansion;
}

SweepExpansion::Values SweepExpansion::SortedValues(int index) const {
  Values values;
  if (!is_grid_) {
    const Struct& point = list_[static_cast<size_t>(index)];
    values.assign(point.fields().begin(), point.fields().end());
    std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return values;
  }
  // The last path varies fastest.
  for (auto path = grid_.rbegin(); path != grid_.rend(); ++path) {
    const int size = path->second.values_size();
    values.push_back({path->first, path->second.values(index % size)});
    index /= size;
  }
  std::reverse(values.begin(), values.end());
  return values;
}

Struct SweepExpansion::ValuesOf(int index) const {
  Struct point;
  for (auto& [path, value] : SortedValues(index)) (*point.mutable_fields())[path] = std::move(value);
  return point;
}

absl::StatusOr<v1::JobSpec> SweepExpansion::SpecOf(int index) const {
  v1::JobSpec spec = base_;
  std::vector<std::string> paths;
  for (const auto& [path, value] : SortedValues(index)) {
    if (path.size() > kMaxPathBytes) {
      return InPoint(index, InvalidFields({{"", absl::StrCat("a path has more than ", kMaxPathBytes, " bytes")}}));
    }
    if (const absl::Status status = SetField(&spec, path, value); !status.ok()) return InPoint(index, status);
    if (spec.has_sweep())
      return InPoint(index, InvalidFields({{path, "a point of a sweep cannot have one of its own"}}));
    paths.push_back(path);
  }
  ClearReplaced(paths, &spec);
  return spec;
}

absl::Status SweepExpansion::InPoint(int index, const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string point = absl::StrCat(is_grid_ ? "sweep.grid[" : "sweep.list[", index, "]");
  const std::string with =
      is_grid_ ? absl::StrCat(" (at ", Cut(ToJson(ValuesOf(index), JsonStyle::kCompact), kShownValuesBytes), ")") : "";
  std::vector<FieldViolation> violations = FieldViolationsOf(status);
  if (violations.empty()) {
    absl::Status named(status.code(), absl::StrCat(point, with, ": ", status.message()));
    status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
    return named;
  }
  for (FieldViolation& violation : violations) {
    violation.field = absl::StrCat(point, violation.field.empty() ? "" : ".", violation.field);
    violation.description += with;
  }
  return InvalidFields(violations);
}

}  // namespace ampd
