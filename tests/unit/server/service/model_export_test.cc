#include "server/service/model_export.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using Form = v1::ExportModelRequest;

class ModelExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ampd_export_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    job_.set_id("job");
    job_.mutable_plan()->add_input_shape(7);
    fs::create_directories(folder_ + "/exports/left/over");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string MakeCheckpoint(const std::string& name, const std::string& root = "checkpoints") {
    const std::string folder = absl::StrCat(folder_, "/", root, "/job/", name);
    fs::create_directories(folder);
    std::ofstream(folder + "/model.safetensors") << "weights";
    const std::string manifest =
        absl::StrCat("cd ", folder, "; f=model.safetensors; echo $(sha256sum < $f | cut -d' ' -f1) $(stat -c %s $f) $f",
                     " > body; (cat body; echo $(sha256sum < body | cut -d' ' -f1) $(stat -c %s body) MANIFEST) > ",
                     "MANIFEST; rm body");
    EXPECT_EQ(system(manifest.c_str()), 0);
    return folder;
  }

  absl::StatusOr<OpenCheckpoint> Export(const ModelExporter::Runner& runner, const Form& request) {
    Departure caller;
    return Export(runner, request, caller);
  }
  absl::StatusOr<OpenCheckpoint> Export(const ModelExporter::Runner& runner, const Form& request, Departure& caller) {
    const ModelExporter exporter(
        {folder_ + "/checkpoints", folder_ + "/mirror", folder_ + "/exports", {"/data"}, "/uploads"}, runner);
    EXPECT_TRUE(fs::is_empty(folder_ + "/exports"));
    auto opened = exporter.Export(job_, request, caller);
    EXPECT_TRUE(fs::is_empty(folder_ + "/exports"));
    return opened;
  }

  std::string folder_;
  v1::Job job_;
};

TEST_F(ModelExportTest, GivesWhatTheRunnerWrote) {
  MakeCheckpoint("step-000000004");
  const std::string newest = MakeCheckpoint("step-000000005");
  Form request;
  request.set_form(Form::ONNX);
  const auto opened = Export(
      [&](const v1::ExportRequest& asked, const std::string& path, int64_t bytes, const StopEvent& left) {
        EXPECT_FALSE(left.is_set());
        EXPECT_EQ(fs::path(asked.checkpoint_dir()).filename(), fs::path(newest).filename());
        EXPECT_EQ(asked.plan().input_shape(0), 7);
        EXPECT_EQ(asked.data_roots(0), "/data");
        EXPECT_EQ(asked.upload_dir(), "/uploads");
        EXPECT_EQ(asked.request().form(), Form::ONNX);
        EXPECT_GT(bytes, 7);
        std::ofstream(path) << "a model";
        return absl::OkStatus();
      },
      request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->name, "step-000000005");
  ASSERT_EQ(opened->files.size(), 1u);
  EXPECT_EQ(opened->files[0].name, "model.onnx");
  EXPECT_EQ(ReadChunk(opened->files[0], 0, 100).value(), "a model");
}

TEST_F(ModelExportTest, HoldsWhatTheJobDeletesMeanwhile) {
  const std::string newest = MakeCheckpoint("step-000000005");
  const auto runner = [&](const v1::ExportRequest& asked, const std::string& path, int64_t, const StopEvent&) {
    fs::remove_all(newest);
    std::ofstream(path) << std::ifstream(asked.checkpoint_dir() + "/model.safetensors").rdbuf();
    return fs::exists(asked.checkpoint_dir() + "/MANIFEST") ? absl::OkStatus() : absl::NotFoundError("MANIFEST");
  };
  const auto opened = Export(runner, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->name, "step-000000005");
  EXPECT_EQ(ReadChunk(opened->files[0], 0, 100).value(), "weights");
}

TEST_F(ModelExportTest, IsMadeOfTheMirrorsCopyWhereTheCheckpointIsDamaged) {
  MakeCheckpoint("step-000000004");
  const std::string newest = MakeCheckpoint("step-000000005");
  MakeCheckpoint("step-000000005", "mirror");
  const auto runner = [&](const v1::ExportRequest& asked, const std::string& path, int64_t, const StopEvent&) {
    std::ofstream(path) << std::ifstream(asked.checkpoint_dir() + "/model.safetensors").rdbuf();
    return absl::OkStatus();
  };
  EXPECT_FALSE(Export(runner, {})->from_mirror);
  std::ofstream(newest + "/model.safetensors") << "wEights";
  auto opened = Export(runner, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->name, "step-000000005");
  EXPECT_TRUE(opened->from_mirror);
  EXPECT_EQ(ReadChunk(opened->files[0], 0, 100).value(), "weights");
  fs::remove_all(newest);
  Form named;
  named.set_checkpoint("step-000000005");
  opened = Export(runner, named);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->from_mirror);
}

TEST_F(ModelExportTest, TellsTheRunnerWhenTheCallerGoes) {
  MakeCheckpoint("step-000000005");
  Departure caller;
  const auto runner = [&](const v1::ExportRequest&, const std::string&, int64_t, const StopEvent& left) {
    EXPECT_FALSE(left.is_set());
    caller.Go();
    EXPECT_TRUE(left.is_set());
    return absl::UnavailableError("stopped");
  };
  EXPECT_EQ(Export(runner, {}, caller).status(), absl::UnavailableError("stopped"));
  // For who has gone before nothing runs; who goes afterwards disturbs nobody.
  int runs = 0;
  const auto looks = [&](const v1::ExportRequest&, const std::string& path, int64_t, const StopEvent& left) {
    ++runs;
    EXPECT_FALSE(left.is_set());
    std::ofstream(path) << "a model";
    return absl::OkStatus();
  };
  Departure gone;
  gone.Go();
  EXPECT_TRUE(absl::IsCancelled(Export(looks, {}, gone).status()));
  EXPECT_EQ(runs, 0);
  Departure later;
  EXPECT_TRUE(Export(looks, {}, later).ok());
  EXPECT_EQ(runs, 1);
  later.Go();
}

TEST_F(ModelExportTest, RefusesWhatThereIsNot) {
  MakeCheckpoint("step-000000005");
  const auto never = [](const v1::ExportRequest&, const std::string&, int64_t, const StopEvent&) {
    ADD_FAILURE();
    return absl::OkStatus();
  };
  Form request;
  request.set_form(Form::ONNX);
  request.set_dtype(Form::BFLOAT16);
  EXPECT_TRUE(absl::IsInvalidArgument(Export(never, request).status()));
  request.set_form(static_cast<Form::Form>(12));
  EXPECT_TRUE(absl::IsInvalidArgument(Export(never, request).status()));
  Form other;
  other.set_checkpoint("step-000000006");
  EXPECT_TRUE(absl::IsNotFound(Export(never, other).status()));
  const auto writes_nothing = [](const v1::ExportRequest&, const std::string&, int64_t, const StopEvent&) {
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsInternal(Export(writes_nothing, {}).status()));
  const auto fails = [](const v1::ExportRequest&, const std::string& path, int64_t, const StopEvent&) {
    std::ofstream(path) << "half";
    return absl::FailedPreconditionError("layer a");
  };
  EXPECT_EQ(Export(fails, {}).status(), absl::FailedPreconditionError("layer a"));
}

}  // namespace
}  // namespace ampd
