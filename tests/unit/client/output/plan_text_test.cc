#include "client/output/plan_text.h"

#include "gmock/gmock.h"
#include "proto/spec/yaml.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::PlanReport Report(const std::string& more = "") {
  v1::PlanReport report;
  EXPECT_EQ(ParseYaml(R"(
spec: {name: demo, precision: {mode: FP16}, train: {batch_size: 8, micro_batch_size: 8}}
device_model: {name: T, memory_bytes: 1073741824}
modes: [{mode: FP16, supported: true, largest_batch: 1200, workspace_bytes: 268435456}]
layers: [{layer: conv1, workspace_bytes: 268435456}]
)" + more,
                      "report", &report),
            absl::OkStatus());
  return report;
}

TEST(PlanText, ABatchOfAllSamplesIsCalledThat) {
  v1::PlanReport report = Report();
  EXPECT_THAT(PlanReportText(report), HasSubstr("1200\n"));
  EXPECT_THAT(PlanReportText(report), Not(HasSubstr("all samples")));
  report.mutable_modes(0)->set_largest_batch_is_all_samples(true);
  EXPECT_THAT(PlanReportText(report), HasSubstr("1200 (all samples)\n"));
}

TEST(PlanText, WhatTheDataTakesStandsBelowTheMemory) {
  EXPECT_THAT(PlanReportText(Report()), Not(HasSubstr("Data:")));
  EXPECT_THAT(PlanReportText(Report("data_bytes: 75497472\n")),
              HasSubstr("1200\nData: up to 72.0 MiB more of the host's memory for samples (data.cache, spectrograms, "
                        "arrays), in no total.\n"));
}

TEST(PlanText, AWorkspaceThatLiesAmongActivationsIsNoContradiction) {
  v1::PlanReport report = Report();
  EXPECT_THAT(PlanReportText(report), Not(HasSubstr("what that adds")));
  report.mutable_layers(0)->set_workspace_bytes(301989888);
  EXPECT_THAT(PlanReportText(report), HasSubstr("WORKSPACE below is what that adds to them.\n"));
}

}  // namespace
}  // namespace ampd::client
