// Jobs that measure, and precision mode AUTO.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

const std::string kJob =
    "model: {layers: [{name: head, dense: {units: 10}}], loss: {softmax_cross_entropy: {}}}\n"
    "data: {train: {glyphs: {}}}\n";

absl::StatusOr<ResolvedJobSpec> Resolve(const std::string& yaml) {
  v1::JobSpec spec;
  FieldLines lines;
  const absl::Status status = ParseYaml(yaml, "job.yaml", &spec, &lines);
  EXPECT_TRUE(status.ok()) << status;
  return ResolveJobSpec(std::move(spec));
}

void ExpectRefused(const std::string& yaml, const std::string& why) {
  const auto resolved = Resolve(yaml);
  ASSERT_FALSE(resolved.ok()) << yaml;
  EXPECT_THAT(std::string(resolved.status().message()), HasSubstr(why)) << yaml;
}

TEST(ResolveBench, FillsDefaultsAndIsIdempotent) {
  const auto resolved = Resolve(kJob + "train: {batch_size: 48}\nbench: {}\n");
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const v1::BenchSpec& bench = resolved->proto().bench();
  EXPECT_EQ(bench.modes_size(), 0) << "which the device can do is not known yet";
  ASSERT_EQ(bench.batch_sizes_size(), 1);
  EXPECT_EQ(bench.batch_sizes(0), 48);
  EXPECT_EQ(bench.steps(), 30);
  EXPECT_EQ(bench.warmup_steps(), 5);
  EXPECT_EQ(ResolveJobSpec(resolved->proto())->proto().SerializeAsString(), resolved->proto().SerializeAsString());
}

TEST(ResolveBench, SweepsHaveNoModel) {
  for (const char* sweep : {"kind: GEMM", "kind: CONV"}) {
    const auto resolved = Resolve(absl::StrCat("bench: {sweep: {", sweep, "}}\n"));
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(resolved->proto().bench().sweep().sizes_size(), 4);
    EXPECT_FALSE(resolved->proto().has_model());
    EXPECT_FALSE(resolved->proto().has_data());
    EXPECT_EQ(ResolveJobSpec(resolved->proto())->proto().SerializeAsString(), resolved->proto().SerializeAsString());
  }
  ExpectRefused(kJob + "bench: {sweep: {kind: GEMM}}\n", "model: is not given with bench.sweep");
  ExpectRefused("bench: {sweep: {kind: GEMM}}\nstart_from: {job_id: 01hq3v7m}\n",
                "start_from: is not given with bench.sweep");
  EXPECT_TRUE(Resolve(kJob + "bench: {}\nstart_from: {job_id: 01hq3v7m}\n").ok());
  ExpectRefused("bench: {sweep: {}}\n", "bench.sweep.kind: required, GEMM or CONV");
  ExpectRefused("bench: {sweep: {kind: GEMM, kernels: [3]}}\n", "bench.sweep.kernels: needs kind CONV");
  ExpectRefused("bench: {sweep: {kind: GEMM, sizes: [9223372036854775807]}}\n", "bench.sweep.sizes[0]: must be");
  ExpectRefused("bench: {sweep: {kind: CONV, image: 100000}}\n", "bench.sweep.image: must be");
  ExpectRefused("bench: {sweep: {kind: CONV}, batch_sizes: [3]}\n", "bench.batch_sizes: is not given with bench.sweep");
}

TEST(ResolveBench, RefusesWhatCannotBeMeasured) {
  ExpectRefused(kJob + "bench: {modes: [AUTO]}\n", "bench.modes[0]: must be FP32, TF32, FP16, BF16 or FP8");
  ExpectRefused(kJob + "bench: {modes: [BF16, BF16]}\n", "bench.modes[1]: names BF16 a second time");
  ExpectRefused(kJob + "bench: {batch_sizes: [32, 0]}\n", "bench.batch_sizes[1]: must be");
  ExpectRefused(kJob + "bench: {batch_sizes: [32, 32]}\n", "bench.batch_sizes[1]: names 32 a second time");
  ExpectRefused(kJob + "bench: {steps: 0}\n", "bench.steps: must be");
  ExpectRefused(kJob + "bench: {warmup_steps: -1}\n", "bench.warmup_steps: must be");
  ExpectRefused(kJob + "train: {batch_size: 64, micro_batch_size: 16}\nbench: {batch_sizes: [8, 16, 24, 32]}\n",
                "bench.batch_sizes[2]: must be at most train.micro_batch_size, 16, or a multiple of it, is 24");
  ExpectRefused("bench: {}\n", "data.train: required");
}

TEST(ResolveAuto, FillsDefaultsAndIsIdempotent) {
  const auto resolved = Resolve(kJob + "precision: {mode: AUTO, loss_scale: {init: 8}}\n");
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const v1::PrecisionSpec& precision = resolved->proto().precision();
  EXPECT_EQ(precision.auto_().steps(), 60);
  EXPECT_EQ(precision.auto_().tolerance(), 0.02);
  EXPECT_EQ(precision.loss_scale().kind(), v1::LossScaleSpec::KIND_UNSPECIFIED) << "it follows from the mode it takes";
  EXPECT_EQ(precision.loss_scale().init(), 8);
  EXPECT_EQ(ResolveJobSpec(resolved->proto())->proto().SerializeAsString(), resolved->proto().SerializeAsString());
}

TEST(ResolveAuto, RefusesWhatItCannotCompare) {
  const auto refused = [](const std::string& precision, const std::string& why) {
    ExpectRefused(absl::StrCat(kJob, "precision: {", precision, "}\n"), why);
  };
  refused("mode: AUTO, auto: {steps: 9}", "precision.auto.steps: must be");
  refused("mode: AUTO, auto: {tolerance: 0}", "precision.auto.tolerance: must be");
  refused("mode: AUTO, auto: {modes: [AUTO]}", "precision.auto.modes[0]: must be FP32");
  refused("mode: AUTO, rules: [{match: head, dtype: BF16}]",
          "precision.rules[0].dtype: must be FP32 in a job of mode AUTO, is BF16");
  const auto held = Resolve(kJob + "precision: {mode: AUTO, rules: [{match: head}]}\n");
  EXPECT_TRUE(held.ok()) << held.status();
  // One file serves every mode.
  const auto other = Resolve(kJob + "precision: {mode: BF16, auto: {steps: 20}}\n");
  EXPECT_TRUE(other.ok()) << other.status();
  ExpectRefused(
      "model: {networks: [{name: a, layers: [{name: d, dense: {units: 1}}]}]}\n"
      "data: {train: {glyphs: {}}}\nprecision: {mode: AUTO}\n",
      "precision.mode: AUTO is not for jobs with model.networks");
}

}  // namespace
}  // namespace ampd
