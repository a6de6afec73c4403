#include "server/service/data_paths.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

absl::Status Check(const std::string& path, const std::vector<std::string>& roots = {"/data", "/more/data"}) {
  v1::JobSpec spec;
  spec.mutable_data()->mutable_train()->mutable_idx()->set_images(path);
  return CheckDataPaths(spec, roots);
}

TEST(DataPaths, AcceptsWhatLiesBeneathARootWhetherItExistsOrNot) {
  EXPECT_TRUE(Check("mnist/images.gz").ok());
  EXPECT_TRUE(Check("/data/x").ok());
  EXPECT_TRUE(Check("/more/data/..x/y").ok());
  EXPECT_TRUE(Check("/anything", {"/"}).ok());
  EXPECT_TRUE(CheckDataPaths(v1::JobSpec(), {}).ok());
}

TEST(DataPaths, RefusesWhatLiesElsewhere) {
  EXPECT_THAT(std::string(Check("/etc/passwd").message()), HasSubstr("outside the data roots (/data, /more/data)"));
  for (const char* path : {"/data", "/database/x", "/data/../etc", "../x", "a/../../b", "/"}) {
    EXPECT_EQ(Check(path).code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_FALSE(Check(std::string("a\0b", 3)).ok());
  EXPECT_THAT(std::string(Check("x", {}).message()), HasSubstr("no data root"));
}

TEST(DataPaths, UploadsAreNoPaths) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_onnx()->set_path("upload:../x");
  spec.mutable_start_from()->set_path("upload:x");
  EXPECT_TRUE(CheckDataPaths(spec, {}).ok());
}

TEST(DataPaths, NamesEveryField) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_onnx()->set_path("/bad.onnx");
  spec.mutable_start_from()->set_path("../w.safetensors");
  spec.mutable_data()->mutable_train()->mutable_cifar10()->add_paths("ok");
  spec.mutable_data()->mutable_train()->mutable_cifar10()->add_paths("/bad");
  spec.mutable_data()->mutable_eval()->mutable_npy()->set_inputs("../x");
  spec.mutable_data()->mutable_eval()->mutable_npy()->set_targets("/bad");
  std::vector<std::string> fields;
  for (const FieldViolation& violation : FieldViolationsOf(CheckDataPaths(spec, {"/data"}))) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(fields, testing::ElementsAre("data.train.cifar10.paths[1]", "data.eval.npy.inputs",
                                           "data.eval.npy.targets", "model.onnx.path", "start_from.path"));
}

}  // namespace
}  // namespace ampd
