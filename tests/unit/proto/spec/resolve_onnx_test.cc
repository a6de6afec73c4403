// model.onnx of a job file.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

// `onnx` and `more`: inner YAML of model.onnx and of the job. The resolved spec, or the violations, one a line.
absl::StatusOr<ResolvedJobSpec> Resolve(const std::string& onnx, const std::string& more = "") {
  v1::JobSpec spec;
  const std::string yaml = absl::StrCat("model: {onnx: {", onnx, "}, loss: {softmax_cross_entropy: {}}}\n",
                                        "data: {train: {glyphs: {}}}\n", more);
  EXPECT_EQ(ParseYaml(yaml, "f", &spec), absl::OkStatus()) << yaml;
  return ResolveJobSpec(spec);
}

std::string Violated(const std::string& onnx, const std::string& more = "") {
  const auto resolved = Resolve(onnx, more);
  return absl::StrJoin(FieldViolationsOf(resolved.status()), "\n", [](std::string* out, const FieldViolation& v) {
    absl::StrAppend(out, v.field, ": ", v.description);
  });
}

TEST(ResolveOnnx, FillsDefaults) {
  const auto resolved = Resolve("path: a/net.onnx", "precision: {mode: FP16, rules: [{match: 'Conv_*', dtype: FP32}]}");
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const v1::OnnxModel& onnx = resolved->proto().model().onnx();
  EXPECT_TRUE(onnx.weights());
  EXPECT_TRUE(onnx.has_weights() && onnx.has_channels_first() && onnx.channels_first());
  EXPECT_EQ(onnx.path(), "a/net.onnx");
  // As it is resolved once more by a worker.
  EXPECT_TRUE(ResolveJobSpec(resolved->proto()).ok());
}

TEST(ResolveOnnx, ChecksEveryField) {
  const std::string digest(64, 'a');
  EXPECT_EQ(Violated(absl::StrCat("path: 'upload:", digest, "', outputs: [logits], input: x, freeze: ['conv*']")), "");
  EXPECT_EQ(Violated(""), "model.onnx.path: required");
  for (const std::string& wrong :
       {digest.substr(1), digest + "a", "A" + digest.substr(1), std::string("../") + digest}) {
    EXPECT_EQ(Violated("path: 'upload:" + wrong + "'").find("model.onnx.path: an upload is named by its SHA-256, 64"),
              0u)
        << wrong;
  }
  EXPECT_EQ(Violated("path: a, outputs: [x, y]"),
            "model.onnx.outputs: more than one is not supported yet: the loss reads one, are 2");
  EXPECT_EQ(Violated("path: a, outputs: ['']"), "model.onnx.outputs[0]: required");
  EXPECT_EQ(Violated("path: a, freeze: ['b*', '']"), "model.onnx.freeze[1]: required");
  EXPECT_EQ(Violated("path: a, freeze: ['*'], weights: false"),
            "model.onnx.freeze: keeps the file's weights, which weights: false does not take");
}

TEST(ResolveOnnx, GoesWithNoOtherModel) {
  const auto violated = [](const std::string& model) {
    v1::JobSpec spec;
    const std::string yaml = absl::StrCat("model: {", model, ", onnx: {path: a}}\ndata: {train: {glyphs: {}}}\n");
    EXPECT_EQ(ParseYaml(yaml, "f", &spec), absl::OkStatus()) << yaml;
    std::string all;
    for (const FieldViolation& v : FieldViolationsOf(ResolveJobSpec(spec).status())) {
      absl::StrAppend(&all, v.field, ": ", v.description, "\n");
    }
    return all;
  };
  EXPECT_EQ(violated("layers: [{dense: {units: 10}}], loss: {softmax_cross_entropy: {}}"),
            "model.layers: cannot be given with onnx\n");
  EXPECT_NE(violated("networks: [{name: g, layers: [{dense: {units: 10}}]}]").find("model.onnx: cannot be given with"),
            std::string::npos);
  EXPECT_NE(violated("preset: {mlp: {}}").find("model.onnx"), std::string::npos);
  EXPECT_NE(Violated("path: a", "report: {samples: {text: {}}}").find("report.samples.text: needs model.layers"),
            std::string::npos);
}

}  // namespace
}  // namespace ampd
