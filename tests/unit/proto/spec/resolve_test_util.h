// A minimal job, and what resolving finds wrong with it once fields are set.
#ifndef AMPD_TESTS_UNIT_PROTO_SPEC_RESOLVE_TEST_UTIL_H_
#define AMPD_TESTS_UNIT_PROTO_SPEC_RESOLVE_TEST_UTIL_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd {

inline constexpr char kMinimal[] = R"(
model:
  layers: [{conv2d: {filters: 8, kernel: [3]}}, {max_pool: {size: [2]}}, {flatten: {}}, {dense: {units: 10}}]
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
)";

inline v1::JobSpec Minimal(const std::vector<std::string>& sets = {}) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(kMinimal, "f", &spec), absl::OkStatus());
  for (const std::string& set : sets) EXPECT_EQ(ApplySet(&spec, set), absl::OkStatus());
  return spec;
}

// The violations, one a line; "" where there are none.
inline std::string Violated(const v1::JobSpec& spec) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(spec);
  if (resolved.ok()) return "";
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
  return absl::StrJoin(FieldViolationsOf(resolved.status()), "\n", [](std::string* out, const FieldViolation& v) {
    absl::StrAppend(out, v.field, ": ", v.description);
  });
}

// What is set (as by --set) and what is said of it.
struct Case {
  std::string set;
  std::string violation;
};

inline void ExpectViolations(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Violated(Minimal({c.set})), c.violation) << c.set;
}

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_PROTO_SPEC_RESOLVE_TEST_UTIL_H_
