// Which paths are this machine's, what is sent of them, and what the job names then.
#include "client/local_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "client/connection.h"
#include "client/dataset_upload.h"
#include "client/interrupt.h"
#include "client/program.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "proto/spec/text.h"
#include "tests/unit/client/fake_training_service.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// FIPS 180-4's example: of "abc".
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kUpload[] = "upload:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class LocalFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "local_files_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    std::filesystem::create_directories(folder_ + "/sub");
    std::ofstream(folder_ + "/w.safetensors") << "abc";
    std::ofstream(folder_ + "/sub/net.onnx") << "abc";
    fake_.job.set_id("01abc");
    fake_.events = ExampleEvents(1, v1::Job::SUCCEEDED);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Job(const std::string& text) {
    std::ofstream(folder_ + "/job.yaml") << text;
    return folder_ + "/job.yaml";
  }
  int Run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    arguments.insert(arguments.begin(), {"ampctl", "--server", fake_.address()});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return RunProgram(static_cast<int>(argv.size()), argv.data(), &out_, &err_, false);
  }

  FakeTrainingService fake_;
  std::string folder_;
  std::ostringstream out_, err_;
};

TEST_F(LocalFilesTest, AFileOfADatasetWhoseNameIsNoUtf8IsNamed) {
  std::ofstream(folder_ + "/sub/caf\xe9.png") << "abc";
  EXPECT_EQ(Run({"datasets", "upload", "images", folder_ + "/sub"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/sub/caf\\xe9.png: its path in the dataset is no UTF-8"));
  EXPECT_EQ(fake_.dataset_uploads_begun, 0);
}

TEST_F(LocalFilesTest, TellsThemFromTheServers) {
  const auto local = [this](const std::string& path) { return LocalFileOf(path, folder_).value_or("error"); };
  EXPECT_EQ(local("w.safetensors"), folder_ + "/w.safetensors");
  EXPECT_EQ(local("./w.safetensors"), folder_ + "/w.safetensors");
  EXPECT_EQ(local("sub/../w.safetensors"), folder_ + "/sub/../w.safetensors");
  EXPECT_EQ(local(folder_ + "/w.safetensors"), folder_ + "/w.safetensors");
  // The server's.
  EXPECT_EQ(local("other.safetensors"), "");
  EXPECT_EQ(local("/data/other.safetensors"), "");
  EXPECT_EQ(local("sub"), "") << "a folder";
  EXPECT_EQ(local(kUpload), "");
  EXPECT_EQ(local(""), "");
  EXPECT_TRUE(absl::IsNotFound(LocalFileOf("./other", folder_).status()));
  EXPECT_TRUE(absl::IsNotFound(LocalFileOf("../other", folder_).status()));
  EXPECT_EQ(Sha256OfFile(folder_ + "/w.safetensors").value(), kAbc);
  EXPECT_TRUE(absl::IsNotFound(Sha256OfFile(folder_ + "/none").status()));
}

TEST_F(LocalFilesTest, SubmitSendsWhatTheFileNames) {
  const std::string job = Job("model: {onnx: {path: sub/net.onnx}}\nstart_from: {path: ./w.safetensors}\n");
  ASSERT_EQ(Run({"submit", job}), 0) << err_.str();
  EXPECT_EQ(fake_.uploaded.at(kAbc), "abc");
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), kUpload);
  EXPECT_EQ(fake_.created.back().spec().model().onnx().path(), kUpload);
  EXPECT_THAT(err_.str(), HasSubstr("sending " + folder_ + "/w.safetensors, 3 B"));
  // What --set names starts from where one is.
  ASSERT_EQ(Run({"submit", job, "-q", "--set", "start_from.path=w.safetensors", "--set", "model.onnx=null"}), 0);
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), "w.safetensors");
  EXPECT_THAT(err_.str(), IsEmpty());
  fake_.uploaded.clear();
  fake_.known_uploads.insert(kAbc);
  ASSERT_EQ(Run({"submit", job}), 0);
  EXPECT_TRUE(fake_.uploaded.empty()) << "it is there";
}

TEST_F(LocalFilesTest, SubmitSendsWhatPointsOfASweepName) {
  std::ofstream(folder_ + "/v.safetensors") << "abcd";
  const std::string job =
      Job("start_from: {path: w.safetensors}\n"
          "sweep:\n"
          "  list:\n"
          "    - {start_from.path: ./w.safetensors}\n"
          "    - {start_from: {path: v.safetensors, allow_missing: true}, name: ./w.safetensors}\n"
          "    - {start_from.path: other.safetensors, model.onnx: {path: sub/net.onnx}}\n"
          "    - {start_from.path: 5, model: {onnx: {}}}\n");
  ASSERT_EQ(Run({"submit", job}), 0) << err_.str();
  EXPECT_EQ(fake_.uploaded.size(), 2u);
  const v1::JobSpec& spec = fake_.sweeps_created.back().spec();
  EXPECT_EQ(spec.start_from().path(), kUpload);
  const auto text = [&](int point) { return ToJson(spec.sweep().list(point), JsonStyle::kCompact); };
  EXPECT_THAT(text(0), HasSubstr(kUpload));
  EXPECT_THAT(text(1),
              HasSubstr(R"("path": "upload:88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589")"));
  EXPECT_THAT(text(1), HasSubstr(R"("name": "./w.safetensors")"));
  EXPECT_THAT(text(2), HasSubstr(R"("start_from.path": "other.safetensors")"));
  EXPECT_THAT(text(2), HasSubstr(kUpload));
  // What is one file is sent once.
  EXPECT_EQ(err_.str().find(folder_ + "/w.safetensors, "), err_.str().rfind(folder_ + "/w.safetensors, "));
  // From where --set was given, or with the line of the file.
  ASSERT_EQ(Run({"submit", job, "-q", "--set", "sweep={grid: {start_from.path: [w.safetensors]}}"}), 0) << err_.str();
  EXPECT_THAT(ToJson(fake_.sweeps_created.back().spec().sweep(), JsonStyle::kCompact), HasSubstr("\"w.safetensors\""));
  EXPECT_EQ(Run({"submit", Job("seed: 1\nsweep:\n  grid:\n    start_from.path: [w.safetensors,\n      ./none.st]\n")}),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("job.yaml:4: sweep.grid.start_from.path[1]: no file " + folder_ + "/none.st"));
}

TEST_F(LocalFilesTest, PlanAndBenchAndADryRunSendThemToo) {
  const std::string job = Job("start_from: {path: w.safetensors}\n");
  ASSERT_EQ(Run({"plan", job}), 0) << err_.str();
  EXPECT_EQ(fake_.planned.back().spec().start_from().path(), kUpload);
  ASSERT_EQ(Run({"submit", job, "--dry-run"}), 0) << err_.str();
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), kUpload);
  EXPECT_TRUE(fake_.created.back().validate_only());
  fake_.events[3].mutable_bench_cell();
  ASSERT_EQ(Run({"bench", job}), 0) << err_.str();
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), kUpload);
}

TEST_F(LocalFilesTest, ManyPiecesArriveAsOne) {
  std::string bytes;
  for (uint32_t i = 0; i < 3'000'000; ++i) bytes += static_cast<char>(i * 7919 >> 5);
  std::ofstream(folder_ + "/w.safetensors", std::ios::binary) << bytes;
  ASSERT_EQ(Run({"submit", Job("start_from: {path: w.safetensors}\n")}), 0) << err_.str();
  ASSERT_EQ(fake_.uploaded.size(), 1u);
  EXPECT_TRUE(fake_.uploaded.begin()->second == bytes);
}

TEST_F(LocalFilesTest, ErrorsNameTheField) {
  const std::string job = Job("seed: 1\nstart_from:\n  path: ./none.safetensors\n");
  EXPECT_EQ(Run({"submit", job}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("job.yaml:3: start_from.path: no file " + folder_ + "/none.safetensors"));
  fake_.uploads = {absl::ResourceExhaustedError("the file has more than 2 bytes")};
  EXPECT_EQ(Run({"submit", Job("start_from: {path: w.safetensors}\n")}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("w.safetensors: the file has more than 2 bytes"));
  // Lost on the way: tried again.
  fake_.uploads = {absl::UnavailableError("away")};
  EXPECT_EQ(Run({"submit", Job("start_from: {path: w.safetensors}\n")}), 0) << err_.str();
}

TEST_F(LocalFilesTest, ResumeFromIsAFileOrAJob) {
  const std::string job = Job("start_from: {path: other.safetensors, allow_missing: true}\n");
  ASSERT_EQ(Run({"submit", job, "--resume-from", folder_ + "/w.safetensors"}), 0) << err_.str();
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), kUpload);
  EXPECT_TRUE(fake_.created.back().spec().start_from().allow_missing()) << "the source alone is another";
  EXPECT_THAT(err_.str(), testing::Not(HasSubstr("--continue-from")));
  ASSERT_EQ(Run({"submit", job, "--resume-from", "01hq3v7m", "-q"}), 0);
  EXPECT_EQ(err_.str(), "");
  ASSERT_EQ(Run({"submit", job, "--resume-from", "01hq3v7m"}), 0);
  EXPECT_EQ(err_.str(), "weights alone are taken; --continue-from goes on with optimizer and step\n");
  EXPECT_EQ(fake_.created.back().spec().start_from().job_id(), "01hq3v7m");
  EXPECT_EQ(fake_.created.back().spec().start_from().checkpoint(), "");
  EXPECT_FALSE(fake_.created.back().spec().start_from().has_path());
  EXPECT_TRUE(fake_.created.back().spec().start_from().allow_missing());
  ASSERT_EQ(Run({"submit", job, "--set", "start_from.allow_missing=false", "--resume-from", "01hq3v7m@best"}), 0);
  EXPECT_EQ(fake_.created.back().spec().start_from().checkpoint(), "best");
  EXPECT_FALSE(fake_.created.back().spec().start_from().allow_missing());
  ASSERT_EQ(Run({"submit", job, "--resume-from", "01hq3v7m@step-000000500"}), 0);
  EXPECT_EQ(fake_.created.back().spec().start_from().checkpoint(), "step-000000500");
  ASSERT_EQ(Run({"submit", job, "--resume-from", kUpload}), 0);
  EXPECT_EQ(fake_.created.back().spec().start_from().path(), kUpload);
  const size_t created = fake_.created.size();
  for (const char* source : {"none.safetensors", "./none", "@step-1", "01hq3v7m@"}) {
    EXPECT_EQ(Run({"submit", job, "--resume-from", source}), 2) << source;
    EXPECT_THAT(err_.str(), HasSubstr("--resume-from: ")) << source;
  }
  EXPECT_EQ(fake_.created.size(), created);
}

TEST_F(LocalFilesTest, ContinueFromIsAJob) {
  const std::string job = Job("start_from: {path: other.safetensors, allow_missing: true}\n");
  ASSERT_EQ(Run({"submit", job, "--continue-from", "01hq3v7m@best"}), 0) << err_.str();
  const v1::WeightSource source = fake_.created.back().spec().start_from();
  EXPECT_EQ(source.job_id(), "01hq3v7m");
  EXPECT_EQ(source.checkpoint(), "best");
  EXPECT_TRUE(source.continue_training());
  EXPECT_FALSE(source.allow_missing()) << "nothing stays of what the file says";
  const size_t created = fake_.created.size();
  for (const std::string& wrong : {folder_ + "/w.safetensors", std::string(kUpload), std::string("@step-1")}) {
    EXPECT_EQ(Run({"submit", job, "--continue-from", wrong}), 2) << wrong;
    EXPECT_THAT(err_.str(), HasSubstr("--continue-from: expected JOB or JOB@CHECKPOINT, got ")) << wrong;
  }
  EXPECT_EQ(Run({"submit", job, "--continue-from", "01hq3v7m", "--resume-from", "01hq3v7m"}), 2);
  EXPECT_EQ(fake_.created.size(), created);
}

// That its name is being deleted, say.
TEST_F(LocalFilesTest, ADatasetIsSentAgainWhenTheServerSays) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(1'000'000);
  absl::Status busy = absl::AbortedError("dataset d is being deleted");
  busy.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord(info.SerializeAsString()));
  fake_.dataset_uploads = {busy, busy, busy};
  DatasetUploadOptions options{.name = "d", .path = folder_ + "/sub"};
  // Whoever waits as long as by itself never ends.
  options.first_delay = options.last_delay = absl::Hours(10);
  Interrupt interrupt;
  const auto connection = Connection::Open(fake_.address());
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto dataset = UploadDataset(options, connection->get(), &interrupt, &err_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->name(), "d");
  EXPECT_EQ(fake_.dataset_uploads_begun, 4);
  // Another stream that took over is no reason to fight it.
  fake_.dataset_uploads = {absl::AbortedError("another call has taken over the upload of dataset d")};
  EXPECT_TRUE(absl::IsAborted(UploadDataset(options, connection->get(), &interrupt, &err_).status()));
}

}  // namespace
}  // namespace ampd::client
