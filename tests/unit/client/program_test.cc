// Every verb, from arguments to text and exit code.
#include "client/program.h"

#include <signal.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/commands/command.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/unit/client/fake_training_service.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

class ProgramTest : public testing::Test {
 protected:
  // Blocked in every thread, gRPC's too, so that only the program under test takes it.
  static void SetUpTestSuite() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "program_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    file_ = folder_ + "/job.yaml";
    std::ofstream(file_) << "name: demo\ntrain:\n  batch_size: 64\n";
    fake_.job.set_id("01abc");
    fake_.job.set_state(v1::Job::RUNNING);
    fake_.job.mutable_spec()->set_name("demo");
    fake_.events = ExampleEvents(3, v1::Job::SUCCEEDED);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    arguments.insert(arguments.begin(), {"ampctl", "--server", fake_.address()});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return RunProgram(static_cast<int>(argv.size()), argv.data(), &out_, &err_, false);
  }
  std::string out() const { return out_.str(); }
  std::string err() const { return err_.str(); }
  int64_t Lines() const {
    const std::string text = out();
    return std::count(text.begin(), text.end(), '\n');
  }

  FakeTrainingService fake_;
  std::string folder_, file_;
  std::ostringstream out_, err_;
};

TEST_F(ProgramTest, SubmitPrintsTheJobInEveryFormat) {
  EXPECT_EQ(Run({"submit", file_}), 0);
  EXPECT_EQ(out(), "submitted 01abc demo RUNNING\n");
  EXPECT_EQ(Run({"submit", "-q", file_, "--set", "train.batch_size=32", "--set", "seed=5"}), 0);
  EXPECT_EQ(out(), "01abc\n");
  EXPECT_EQ(fake_.created.back().spec().train().batch_size(), 32);
  EXPECT_EQ(fake_.created.back().spec().seed(), 5);
  EXPECT_EQ(Run({"-o", "json", "submit", file_}), 0);
  EXPECT_THAT(out(), StartsWith("{\n  \"id\": \"01abc\",\n"));
  EXPECT_EQ(Run({"submit", file_, "-o", "jsonl"}), 0);
  EXPECT_THAT(out(), StartsWith("{\"id\":\"01abc\","));
  EXPECT_EQ(Run({"submit", file_, "-o", "yaml"}), 0);
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(out(), "out", &spec), absl::OkStatus());
  EXPECT_EQ(spec.train().batch_size(), 64);
}

TEST_F(ProgramTest, AnUnknownCommandIsNamed) {
  EXPECT_EQ(Run({"lst"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl has no command 'lst'; did you mean list?"));
  EXPECT_EQ(Run({"-o", "json", "frobnicate", "--now"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl has no command 'frobnicate'\n"));
  EXPECT_EQ(Run({"list", "--stat", "running"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl list has no option '--stat'; did you mean --state?\n"));
  EXPECT_EQ(Run({"tokens", "list", "--nothing-like-it=1"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl tokens list has no option '--nothing-like-it'\n"));
  EXPECT_EQ(Run({"get", "01abc", "surplus"}), 2);
  EXPECT_THAT(err(), HasSubstr("surplus"));
  EXPECT_EQ(Run({"tokens", "crate"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl tokens has no command 'crate'; did you mean create?"));
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err(), StartsWith("A subcommand is required"));
  EXPECT_EQ(Run({"--verison"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl has no option '--verison'; did you mean --version?\n"));
  EXPECT_EQ(Run({"-v"}), 2);
  EXPECT_THAT(err(), StartsWith("ampctl has no option '-v'; did you mean --version?\n"));
}

TEST_F(ProgramTest, HelpIsACommandToo) {
  const auto run = [this](std::vector<const char*> arguments) {
    out_.str("");
    return RunProgram(static_cast<int>(arguments.size()), arguments.data(), &out_, &err_, false);
  };
  EXPECT_EQ(run({"ampctl", "help", "tokens", "create"}), 0);
  EXPECT_THAT(out(), HasSubstr("--lifetime"));
  EXPECT_EQ(run({"ampctl", "help"}), 0);
  EXPECT_THAT(out(), HasSubstr("Submits training jobs"));
  EXPECT_EQ(run({"ampctl", "help", "lst"}), 2);
  EXPECT_THAT(err(), HasSubstr("ampctl has no command 'lst'"));
}

TEST_F(ProgramTest, WhatTlsLacksIsNamed) {
  fake_.get_status = absl::UnavailableError("Socket closed");
  EXPECT_EQ(Run({"get", "01abc"}), 4);
  EXPECT_THAT(err(), HasSubstr("Socket closed (if it speaks TLS: --tls, or --ca FILE)"));
  fake_.get_status = absl::UnavailableError("handshake failed: certificate verify failed");
  EXPECT_EQ(Run({"get", "01abc"}), 4);
  EXPECT_THAT(err(), HasSubstr("(its authority is not among those trusted: --ca FILE names another)"));
}

TEST_F(ProgramTest, ATokensSecretGoesIntoAFileOfItsUserAlone) {
  const std::string path = folder_ + "/ann.token";
  const std::vector<std::string> create = {"tokens", "create", "--user", "ann", "--role", "submitter", "--out", path};
  fake_.token_status = absl::PermissionDeniedError("no");
  EXPECT_NE(Run(create), 0);
  EXPECT_FALSE(std::filesystem::exists(path)) << "no token, no file";
  fake_.token_status = absl::OkStatus();
  const mode_t mask = umask(0);
  EXPECT_EQ(Run(create), 0) << err();
  umask(mask);
  EXPECT_EQ(ReadFile(path), "ampd_secret\n");
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(err(), HasSubstr("01token ann SUBMITTER; its secret is in " + path));
  std::ofstream(path) << "mine";
  EXPECT_EQ(Run(create), 2);
  EXPECT_EQ(ReadFile(path), "mine") << "nothing is overwritten";
  std::filesystem::remove(path);
  std::filesystem::create_symlink(folder_ + "/elsewhere", path);
  EXPECT_EQ(Run(create), 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
  EXPECT_EQ(Run({"-o", "json", "tokens", "create", "--user", "ann", "--role", "admin", "--out", path + "2"}), 0);
  EXPECT_THAT(out(), testing::Not(HasSubstr("ampd_secret")));
  EXPECT_EQ(ReadFile(path + "2"), "ampd_secret\n");
  EXPECT_EQ(Run({"tokens", "create", "--user", "ann", "--role", "submitter"}), 0);
  EXPECT_EQ(out(), "ampd_secret\n");
}

TEST_F(ProgramTest, ATokensFileThatOthersMayReadIsWarnedOf) {
  const std::string path = folder_ + "/ann.token";
  std::ofstream(path) << "ampd_secret\n";
  for (const mode_t mode : {0644, 0640, 0602}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_EQ(Run({"--token-file", path, "get", "01abc"}), 0);
    EXPECT_THAT(err(), HasSubstr("warning: others may read the token in " + path)) << mode;
  }
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  EXPECT_EQ(Run({"--token-file", path, "get", "01abc"}), 0);
  EXPECT_EQ(err(), "");
}

TEST_F(ProgramTest, SubmitRetriesUnderOneRequestId) {
  fake_.creates = {absl::UnavailableError("lost"), absl::DeadlineExceededError("late")};
  EXPECT_EQ(Run({"submit", "-q", file_}), 0);
  ASSERT_EQ(fake_.created.size(), 3);
  EXPECT_FALSE(fake_.created[0].request_id().empty());
  EXPECT_EQ(fake_.created[1].request_id(), fake_.created[0].request_id());
  EXPECT_EQ(fake_.created[2].request_id(), fake_.created[0].request_id());
  EXPECT_EQ(Run({"submit", "-q", file_}), 0);
  EXPECT_NE(fake_.created[3].request_id(), fake_.created[0].request_id());
  EXPECT_EQ(Run({"submit", "-q", file_, "--request-id", "mine"}), 0);
  EXPECT_EQ(fake_.created[4].request_id(), "mine");
}

absl::Status NoRoom() {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(1'000'000);
  absl::Status status = absl::ResourceExhaustedError("too many calls");
  status.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord(info.SerializeAsString()));
  return status;
}

TEST_F(ProgramTest, ARefusedCallIsMadeAgainWhenTheServerSays) {
  // More often than a lost answer is asked for.
  for (int i = 0; i < 10; ++i) fake_.creates.push_back(NoRoom());
  EXPECT_EQ(Run({"submit", "-q", file_}), 0) << err();
  EXPECT_EQ(fake_.created.size(), 11);
  EXPECT_EQ(fake_.created.back().request_id(), fake_.created.front().request_id());
  // Streams too.
  fake_.streams = {{.until = 0, .status = NoRoom()}, {.until = 0, .status = NoRoom()}};
  EXPECT_EQ(Run({"watch", "01abc"}), 0) << err();
  EXPECT_EQ(fake_.watched.size(), 3);
}

TEST_F(ProgramTest, ACallThatIsFullForWithoutAWordOfWhenIsNotRepeated) {
  fake_.creates = {absl::ResourceExhaustedError("has 5 queued jobs")};
  EXPECT_NE(Run({"submit", "-q", file_}), 0);
  EXPECT_EQ(fake_.created.size(), 1);
}

TEST_F(ProgramTest, SubmitExplainsABadSpec) {
  fake_.creates = {InvalidFields({{"train.batch_size", "too big"}, {"data.train", "required"}, {"seed", "odd"}})};
  EXPECT_EQ(Run({"submit", file_, "--set", "seed=5"}), 2);
  EXPECT_EQ(err(), file_ + ":3: train.batch_size: too big\n" + file_ + ": data.train: required\n" +
                       "--set seed=5: seed: odd\n");
  EXPECT_EQ(out(), "");
  std::ofstream(file_) << "train:\n  batch_sise: 64\n";
  EXPECT_EQ(Run({"submit", file_}), 2);
  EXPECT_EQ(err(), file_ + ":2: train.batch_sise: no such field; did you mean batch_size?\n");
  EXPECT_EQ(fake_.created.size(), 1);
}

TEST_F(ProgramTest, DryRunOnlyValidates) {
  EXPECT_EQ(Run({"submit", file_, "--dry-run", "--watch"}), 0);
  EXPECT_EQ(out(), "the data could not be read, so shapes were not checked\nvalid: demo; nothing was submitted\n");
  EXPECT_TRUE(fake_.created[0].validate_only());
  EXPECT_TRUE(fake_.watched.empty());
}

TEST_F(ProgramTest, WhatIsOddIsToldWithItsField) {
  const std::string told = "warning: " + file_ + ":3: train.batch_size: is odd: 3\nwarning: " + file_ +
                           ": data.train: no\x1b file\nwarning: --set seed=5: seed: five\n";
  std::string clean = told;
  std::replace(clean.begin(), clean.end(), '\x1b', '?');
  for (const char* text : {"train.batch_size: is odd: 3", "data.train: no\x1b file", "seed: five"}) {
    fake_.job.mutable_plan()->add_warnings(text);
  }
  EXPECT_EQ(Run({"submit", file_, "--set", "seed=5", "--dry-run"}), 0);
  EXPECT_EQ(err(), clean);
  EXPECT_THAT(out(), HasSubstr("valid: demo"));
  EXPECT_EQ(Run({"submit", file_, "--set", "seed=5", "-q"}), 0);
  EXPECT_EQ(err(), clean);
  EXPECT_EQ(out(), "01abc\n");
  fake_.sweep_warnings = {"data.train: none"};
  EXPECT_EQ(Run({"submit", file_, "--set", "sweep={grid: {seed: [1, 2]}}", "-q"}), 0);
  EXPECT_EQ(err(), "warning: " + file_ + ": data.train: none\n");
}

TEST_F(ProgramTest, WatchEndsWithTheJobsExitCode) {
  EXPECT_EQ(Run({"watch", "01abc"}), 0);
  EXPECT_THAT(out(), HasSubstr("step 3/3"));
  EXPECT_THAT(out(), testing::EndsWith("\nSUCCEEDED accuracy=0.91 applied=3 skipped=0\n"));
  EXPECT_EQ(Run({"submit", file_, "--watch", "-o", "jsonl"}), 0);
  EXPECT_EQ(Lines(), 8);
  EXPECT_EQ(err(), "submitted 01abc\n");
  EXPECT_EQ(Run({"submit", file_, "--watch", "-q"}), 0);
  EXPECT_EQ(out(), "01abc\n");
  EXPECT_EQ(Run({"watch", "01abc", "--after", "6", "-o", "jsonl"}), 0);
  EXPECT_EQ(Lines(), 2);
  EXPECT_EQ(Run({"watch", "01abc", "-o", "json"}), 0);
  EXPECT_THAT(out(), StartsWith("{\n  \"id\": \"01abc\",\n"));
  fake_.events = ExampleEvents(3, v1::Job::FAILED);
  EXPECT_EQ(Run({"watch", "01abc"}), 1);
  EXPECT_THAT(out(), HasSubstr("\nFAILED DATA: x.npy: truncated\n"));
  fake_.events = ExampleEvents(3, v1::Job::CANCELLED);
  EXPECT_EQ(Run({"submit", file_, "--watch"}), 3);
}

TEST_F(ProgramTest, WatchDetachesOnASignal) {
  fake_.streams = {{.until = 5, .hang = true}};
  std::thread ctrl_c([this] {
    fake_.AwaitWatches(1);
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Run({"watch", "01abc"}), 130);
  ctrl_c.join();
  EXPECT_EQ(err(), "detached; the job continues: ampctl watch 01abc\n");
}

TEST_F(ProgramTest, WaitTellsTheWorstEnd) {
  fake_.job.set_state(v1::Job::SUCCEEDED);
  fake_.job.mutable_summary()->set_accuracy(0.5);
  EXPECT_EQ(Run({"wait", "01abc", "01abc"}), 0);
  EXPECT_EQ(out(),
            "01abc SUCCEEDED accuracy=0.5 applied=0 skipped=0\n01abc SUCCEEDED accuracy=0.5 applied=0 skipped=0\n");
  fake_.job.set_state(v1::Job::FAILED);
  EXPECT_EQ(Run({"wait", "01abc"}), 1);
  fake_.job.set_state(v1::Job::CANCELLED);
  EXPECT_EQ(Run({"wait", "01abc"}), 3);
}

TEST_F(ProgramTest, WaitFollowsAndTimesOut) {
  fake_.streams = {{.until = 5, .hang = true}};
  EXPECT_EQ(Run({"wait", "01abc", "--timeout", "0.05"}), 124);
  EXPECT_EQ(err(), "ampctl: timed out; the job continues: ampctl watch 01abc\n");
  fake_.job.set_last_sequence(4);
  Run({"wait", "01abc"});
  EXPECT_EQ(fake_.watched.back().after_sequence(), 4);
}

TEST_F(ProgramTest, TheOtherVerbs) {
  EXPECT_EQ(Run({"get", "01abc"}), 0);
  EXPECT_THAT(out(), StartsWith("id:         01abc\n"));
  EXPECT_EQ(Run({"cancel", "01abc"}), 0);
  EXPECT_EQ(out(), "01abc RUNNING\n");
  EXPECT_EQ(Run({"devices"}), 0);
  EXPECT_THAT(out(), HasSubstr("cpu-0  CPU"));
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_THAT(out(), HasSubstr("ampd 9.9.9 at " + fake_.address()));
  EXPECT_EQ(Run({"-o", "json", "version"}), 0);
  EXPECT_THAT(out(), HasSubstr("\"server\":{\"version\":\"9.9.9\""));
}

TEST_F(ProgramTest, ListFollowsPages) {
  EXPECT_EQ(Run({"list", "--state", "running", "--state", "Queued", "-o", "jsonl"}), 0);
  EXPECT_EQ(Lines(), 2);
  EXPECT_EQ(fake_.listed[0].states_size(), 2);
  EXPECT_EQ(fake_.listed[1].page_token(), "next");
  EXPECT_EQ(err(), "");
  EXPECT_EQ(Run({"list", "--state", "running,queued", "--state", "failed"}), 0);
  EXPECT_EQ(fake_.listed.back().states_size(), 3);
  for (const char* format : {"table", "jsonl"}) {
    EXPECT_EQ(Run({"list", "--limit", "1", "-o", format}), 0);
    EXPECT_THAT(out(), Not(HasSubstr("more with --limit")));
    EXPECT_EQ(err(), "more with --limit\n");
  }
  EXPECT_EQ(Run({"list", "--state", "runing"}), 2);
  EXPECT_THAT(err(), HasSubstr("no such state 'runing'; did you mean RUNNING?"));
}

TEST_F(ProgramTest, SweepsAreListedPageByPage) {
  EXPECT_EQ(Run({"sweeps", "--user", "ann"}), 0);
  EXPECT_THAT(out(), ::testing::MatchesRegex("ID +NAME +USER +JOBS +STATES +CREATED\n"
                                             "01sweep1 +grid +- +3 +2 QUEUED, 1 FAILED +.*\n01sweep2 .*\n"));
  EXPECT_EQ(fake_.sweeps_listed[0].user(), "ann");
  EXPECT_EQ(fake_.sweeps_listed[1].user(), "ann");
  EXPECT_EQ(fake_.sweeps_listed[1].page_token(), "next");
  EXPECT_EQ(Run({"sweeps", "--limit", "1"}), 0);
  EXPECT_EQ(fake_.sweeps_listed.back().page_size(), 1);
  EXPECT_EQ(err(), "more with --limit\n");
  EXPECT_EQ(Run({"sweeps", "-o", "jsonl"}), 0);
  EXPECT_EQ(Lines(), 2);
  EXPECT_EQ(err(), "");
  EXPECT_EQ(Run({"sweeps", "-o", "jsonl", "--limit", "1"}), 0);
  EXPECT_EQ(err(), "more with --limit\n");
}

TEST_F(ProgramTest, ListAsksForWhatItsOptionsSay) {
  EXPECT_EQ(Run({"list", "--user", "a\"n\\n", "--label", "team=vi=sion", "--label", "x=", "--filter",
                 "name:a OR name:b", "--sort", "priority desc"}),
            0);
  EXPECT_EQ(fake_.listed.back().filter(),
            R"((name:a OR name:b) AND user = "a\"n\\n" AND labels."team" = "vi=sion" AND labels."x" = "")");
  EXPECT_EQ(fake_.listed.back().order_by(), "priority desc");
  EXPECT_EQ(Run({"list", "--filter", "name:a OR name:b"}), 0);
  EXPECT_EQ(fake_.listed.back().filter(), "name:a OR name:b");
  EXPECT_EQ(Run({"list", "--since", "2026-01-31T12:00:00Z"}), 0);
  EXPECT_EQ(fake_.listed.back().filter(), "create_time >= \"2026-01-31T12:00:00+00:00\"");
  {
    const ScopedTimeZone zone("IST-5:30");
    EXPECT_EQ(Run({"list", "--since", "2026-01-31"}), 0);
    EXPECT_EQ(fake_.listed.back().filter(), "create_time >= \"2026-01-30T18:30:00+00:00\"");
    EXPECT_EQ(Run({"list", "--since", "2026-01-31 17:30:01"}), 0);
    EXPECT_EQ(fake_.listed.back().filter(), "create_time >= \"2026-01-31T12:00:01+00:00\"");
  }
  for (const char* age : {"2h", "7d", "90m", "0.5d"}) {
    EXPECT_EQ(Run({"list", "--since", age}), 0) << age;
    EXPECT_THAT(fake_.listed.back().filter(), StartsWith("create_time >= \"20"));
  }
  for (const char* wrong : {"yesterday", "-2h", "d", "2", "99999999d", "inf", "2026-01", "2026-01-31 noon"}) {
    EXPECT_EQ(Run({"list", "--since", wrong}), 2) << wrong;
    EXPECT_THAT(err(), HasSubstr("no age like 30m"));
  }
  EXPECT_EQ(Run({"list", "--label", "team"}), 2);
  EXPECT_THAT(err(), HasSubstr("'team' is not KEY=VALUE"));
}

// As sha256sum has it.
constexpr char kManifestOfAbc[] =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 model.safetensors\n"
    "f09e1e1b86cd9abf33900a221b0e83a4c2ea5a12511ada011f50516e0b1dd3c8 85 MANIFEST\n";
// Of "abcdef" and "xyz".
constexpr char kManifestOfTwo[] =
    "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721 6 model.safetensors\n"
    "3608bca1e44ea6c4d268eb6db02260269892c0b42b86bbf1e77a6fa16c3c9282 3 state.json\n"
    "096acb8877e6e0debf0e91822158b55ba1a0bb2572c5d56d601e81dbe7d397b7 163 MANIFEST\n";
// Of "ABCDEF" and "XYZ".
constexpr char kOtherManifest[] =
    "e9c0f8b575cbfcb42ab3b78ecc87efa3b011d9a5d10b09fa4e96f240bf6a82f5 6 model.safetensors\n"
    "ade099751d2ea9f3393f0f32d20c6b980dd5d3b0989dea599b966ae0d3cd5a1e 3 state.json\n"
    "bddd79f7f8b8b5aed2ff665875933178c35db2cb4cf44637d4e95dc2d70c34b1 163 MANIFEST\n";

void AddChunk(const std::string& file, int64_t size, int64_t offset, const std::string& data,
              std::vector<v1::FileChunk>* chunks) {
  v1::FileChunk& chunk = chunks->emplace_back();
  chunk.set_checkpoint("step-5");
  chunk.set_file(file);
  chunk.set_file_size(size);
  chunk.set_offset(offset);
  chunk.set_data(data);
}

// A checkpoint of two files, the first in two pieces.
std::vector<v1::FileChunk> TwoFiles(const std::string& model, const std::string& state, const std::string& manifest) {
  std::vector<v1::FileChunk> chunks;
  AddChunk("model.safetensors", 6, 0, model.substr(0, 3), &chunks);
  AddChunk("model.safetensors", 6, 3, model.substr(3), &chunks);
  AddChunk("state.json", 3, 0, state, &chunks);
  AddChunk("MANIFEST", static_cast<int64_t>(manifest.size()), 0, manifest, &chunks);
  return chunks;
}

TEST_F(ProgramTest, DownloadMakesTheFolderOnce) {
  AddChunk("model.safetensors", 3, 0, "abc", &fake_.chunks);
  AddChunk("MANIFEST", sizeof(kManifestOfAbc) - 1, 0, kManifestOfAbc, &fake_.chunks);
  fake_.downloads = {absl::UnavailableError("drop")};
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/out"}), 0) << err();
  EXPECT_EQ(out(), "step-5: 2 files, 165 B in " + folder_ + "/out\n");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/out2", "-o", "json"}), 0) << err();
  EXPECT_EQ(out(), "{\"checkpoint\": \"step-5\", \"path\": \"" + folder_ + "/out2\", \"files\": 2, \"bytes\": 165}\n");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/out"}), 2);
  EXPECT_THAT(err(), HasSubstr("exists and is not an empty folder"));
  fake_.chunks[0].set_file("../evil");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/other"}), 1);
  EXPECT_THAT(err(), HasSubstr("refused the file name '../evil'"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/evil"));
}

TEST_F(ProgramTest, ABrokenDownloadGoesOnWhereItBroke) {
  fake_.chunks = TwoFiles("abcdef", "xyz", kManifestOfTwo);
  // Within the first file, then within the list, then within the second file.
  fake_.checkpoint_downloads = {{2, absl::UnavailableError("drop"), {}},
                                {SIZE_MAX, absl::OkStatus(), {}},
                                {5, absl::UnavailableError("drop"), {}},
                                {SIZE_MAX, absl::OkStatus(), {}},
                                {1, absl::UnavailableError("drop"), {}}};
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/out"}), 0) << err();
  EXPECT_EQ(ReadFile(folder_ + "/out/model.safetensors"), "abcdef");
  EXPECT_EQ(ReadFile(folder_ + "/out/state.json"), "xyz");
  EXPECT_EQ(ReadFile(folder_ + "/out/MANIFEST"), kManifestOfTwo);
  ASSERT_GE(fake_.downloaded.size(), 6u);
  EXPECT_EQ(fake_.downloaded[0].file(), "");
  EXPECT_EQ(fake_.downloaded[1].checkpoint(), "step-5");
  EXPECT_EQ(fake_.downloaded[1].file(), "model.safetensors");
  EXPECT_EQ(fake_.downloaded[1].offset(), 2);
  EXPECT_EQ(fake_.downloaded[2].file(), "MANIFEST");
  EXPECT_EQ(fake_.downloaded[4].file(), "state.json");
  EXPECT_EQ(fake_.downloaded[5].file(), "state.json");
  EXPECT_EQ(fake_.downloaded[5].offset(), 1);
}

TEST_F(ProgramTest, PartsOfTwoCheckpointsOfOneNameAreNoCheckpoint) {
  fake_.chunks = TwoFiles("abcdef", "xyz", kManifestOfTwo);
  const std::vector<v1::FileChunk> other = TwoFiles("ABCDEF", "XYZ", kOtherManifest);
  // Between two files, within one, and behind all but the list.
  for (const size_t bytes : {6, 2, 9}) {
    fake_.chunks = TwoFiles("abcdef", "xyz", kManifestOfTwo);
    fake_.checkpoint_downloads = {{bytes, absl::UnavailableError("drop"), other}};
    const std::string path = absl::StrCat(folder_, "/", bytes);
    EXPECT_EQ(Run({"download", "01abc", path}), 0) << err();
    EXPECT_EQ(ReadFile(path + "/model.safetensors"), "ABCDEF");
    EXPECT_EQ(ReadFile(path + "/state.json"), "XYZ");
    EXPECT_EQ(ReadFile(path + "/MANIFEST"), kOtherManifest);
  }
}

TEST_F(ProgramTest, ADownloadThatDoesNotMatchItsManifestFailsAndLeavesNothing) {
  fake_.chunks = TwoFiles("abcdef", "xyZ", kManifestOfTwo);
  for (const bool breaks : {false, true}) {
    fake_.downloaded.clear();
    if (breaks) fake_.checkpoint_downloads = {{2, absl::UnavailableError("drop"), {}}};
    EXPECT_NE(Run({"download", "01abc", folder_ + "/out"}), 0);
    EXPECT_THAT(err(), HasSubstr("state.json of 'step-5': its bytes are not those that MANIFEST lists"));
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/out"));
    const auto whole = [](const v1::DownloadCheckpointRequest& request) { return request.file().empty(); };
    EXPECT_EQ(std::count_if(fake_.downloaded.begin(), fake_.downloaded.end(), whole), breaks ? 2 : 1);
  }
}

TEST_F(ProgramTest, WhatCannotBeResumedIsBegunAnew) {
  AddChunk("model.safetensors", 3, 0, "abc", &fake_.chunks);
  AddChunk("MANIFEST", sizeof(kManifestOfAbc) - 1, 0, kManifestOfAbc, &fake_.chunks);
  fake_.checkpoint_downloads = {{2, absl::UnavailableError("drop"), {}}, {1, absl::NotFoundError("gone"), {}}};
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/out"}), 0) << err();
  EXPECT_EQ(ReadFile(folder_ + "/out/model.safetensors"), "abc");
}

TEST_F(ProgramTest, WhatIsDownloadedHasTheModeThatTheUserWants) {
  const auto mode = [](const std::string& path) {
    return std::filesystem::status(path).permissions() & std::filesystem::perms::all;
  };
  for (const auto& [mask, file, folder] : {std::tuple(0077u, 0600u, 0700u), std::tuple(0002u, 0664u, 0775u)}) {
    const mode_t before = umask(mask);
    const std::string path = absl::StrCat(folder_, "/", mask);
    fake_.chunks = TwoFiles("abcdef", "xyz", kManifestOfTwo);
    EXPECT_EQ(Run({"download", "01abc", path}), 0) << err();
    fake_.chunks.resize(2);
    EXPECT_EQ(Run({"download", "01abc", path + ".onnx"}), 0) << err();
    EXPECT_EQ(umask(before), mask);
    EXPECT_EQ(mode(path), std::filesystem::perms(folder));
    EXPECT_EQ(mode(path + "/state.json"), std::filesystem::perms(file));
    EXPECT_EQ(mode(path + ".onnx"), std::filesystem::perms(file));
  }
}

TEST_F(ProgramTest, DownloadsTheModelAsOneFile) {
  v1::FileChunk chunk;
  chunk.set_file("model.onnx");
  chunk.set_file_size(3);
  chunk.set_data("abc");
  chunk.set_checkpoint("step-5");
  fake_.chunks = {chunk};
  fake_.downloads = {absl::UnavailableError("drop")};
  std::filesystem::create_directory(folder_);
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/a.onnx", "--form", "ONNX", "--checkpoint", "step-5"}), 0) << err();
  EXPECT_EQ(out(), "step-5: 3 B in " + folder_ + "/a.onnx\n");
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::ONNX);
  EXPECT_EQ(fake_.exported.back().checkpoint(), "step-5");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/a2.onnx", "-o", "yaml"}), 0) << err();
  EXPECT_EQ(out(), "{\"checkpoint\": \"step-5\", \"path\": \"" + folder_ + "/a2.onnx\", \"bytes\": 3}\n");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/a.onnx", "--form", "onnx"}), 2);
  EXPECT_THAT(err(), HasSubstr("exists already"));
  EXPECT_EQ(Run({"download", "01abc", folder_, "--dtype", "bf16", "--ema"}), 0) << err();
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::SAFETENSORS);
  EXPECT_EQ(fake_.exported.back().dtype(), v1::ExportModelRequest::BFLOAT16);
  EXPECT_TRUE(fake_.exported.back().ema());
  EXPECT_EQ(fake_.exported.back().network(), "");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/model.safetensors"));
  // Of one network alone is one file, too.
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/g.safetensors", "--network", "generator"}), 0) << err();
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::SAFETENSORS);
  EXPECT_EQ(fake_.exported.back().network(), "generator");
  // A file's name says its form.
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/b.onnx"}), 0) << err();
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::ONNX);
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/b.ONNX", "--ema"}), 0) << err();
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::ONNX);
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/b.safetensors"}), 0) << err();
  EXPECT_EQ(fake_.exported.back().form(), v1::ExportModelRequest::SAFETENSORS);
  fake_.downloads = {absl::FailedPreconditionError("layer a: op b")};
  EXPECT_NE(Run({"download", "01abc", folder_ + "/c.onnx", "--form", "onnx"}), 0);
  EXPECT_THAT(err(), HasSubstr("layer a: op b"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/c.onnx"));
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/d", "--form", "pickle"}), 2);
  EXPECT_EQ(err(), "--form: pickle not in {safetensors,onnx}\nRun with --help for more information.\n");
  EXPECT_EQ(Run({"download", "01abc", folder_ + "/d", "--dtype", "foo"}), 2);
  EXPECT_EQ(err(), "--dtype: foo not in {fp32,fp16,bf16}\nRun with --help for more information.\n");
}

TEST_F(ProgramTest, ErrorsHaveTheirExitCodes) {
  const std::vector<std::pair<absl::Status, int>> cases = {
      {absl::NotFoundError("no such job"), 2},    {absl::UnauthenticatedError("who are you"), 5},
      {absl::PermissionDeniedError("viewer"), 5}, {absl::UnavailableError("draining"), 4},
      {absl::InternalError("oops"), 1},
  };
  for (const auto& [status, exit_code] : cases) {
    fake_.get_status = status;
    EXPECT_EQ(Run({"get", "01abc"}), exit_code);
    EXPECT_THAT(err(), HasSubstr(std::string(status.message())));
  }
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"frobnicate"}), 2);
  EXPECT_EQ(Run({"get"}), 2);
  EXPECT_EQ(Run({"get", "a", "--no-such-flag"}), 2);
  EXPECT_EQ(Run({"-o", "xml", "list"}), 2);
  EXPECT_EQ(Run({"--server", "nowhere", "list"}), 2);
  EXPECT_EQ(Run({"--help"}), 0);
  fake_.Stop();
  EXPECT_EQ(Run({"get", "01abc"}), 4);
  EXPECT_EQ(Run({"watch", "01abc"}), 4);
  EXPECT_EQ(Run({"version"}), 4);
  EXPECT_THAT(out(), StartsWith("ampctl "));
  EXPECT_THAT(err(), StartsWith("ampctl: ampd at " + fake_.address() + " is unavailable: "));
  EXPECT_EQ(Run({"version", "-o", "json"}), 4);
  EXPECT_THAT(out(), HasSubstr("\"server\":null}"));
}

// What stands behind "Example:" in the help of each command, with the words between && and | as commands of their own.
void FindExamples(const CLI::App& app, std::vector<std::string>* commands) {
  bool inside = false;
  std::string whole;
  for (const absl::string_view line : absl::StrSplit(app.get_footer(), '\n')) {
    if (absl::StartsWith(line, "Example")) {
      inside = true;
    } else if (inside && absl::StartsWith(line, "  ")) {
      absl::StrAppend(&whole, absl::EndsWith(line, "\\") ? line.substr(0, line.size() - 1) : line,
                      absl::EndsWith(line, "\\") ? "" : "\n");
    } else {
      inside = false;
    }
  }
  whole = absl::StrReplaceAll(whole, {{" && ", "\n"}, {" | ", "\n"}, {"<(", "$("}});
  // What a command puts in place of itself is some id.
  for (size_t begin = whole.find("$("); begin != std::string::npos; begin = whole.find("$(")) {
    const size_t end = whole.find(')', begin);
    const std::string inner = whole.substr(begin + 2, end - begin - 2);
    whole = absl::StrCat(whole.substr(0, begin), "01hq3v7m", whole.substr(end + 1), "\n", inner);
  }
  for (absl::string_view line : absl::StrSplit(whole, '\n')) {
    const std::string command(absl::StripAsciiWhitespace(line.substr(0, line.find_first_of("#>"))));
    if (absl::StartsWith(command, "ampctl ")) commands->push_back(command);
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    FindExamples(*verb, commands);
  }
}

// Parses as the program does, and runs nothing.
class ParserAlone : public CLI::App {
 public:
  using CLI::App::App;
  void pre_callback() override { throw CLI::Success(); }
};

TEST(HelpTest, EveryExampleIsACommandLine) {
  CommandContext context;
  ParserAlone all("", "ampctl");
  AddProgram(&all, &context);
  std::vector<std::string> commands;
  FindExamples(all, &commands);
  EXPECT_GT(commands.size(), 40);
  for (const std::string& command : commands) {
    ParserAlone app("", "ampctl");
    AddProgram(&app, &context);
    EXPECT_THROW(app.parse(command, true), CLI::Success) << command;
  }
}

// The names of all verbs, those of verbs behind them.
void FindVerbs(const CLI::App& app, const std::vector<std::string>& path,
               std::vector<std::vector<std::string>>* verbs) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::vector<std::string> name = path;
    name.push_back(verb->get_name());
    verbs->push_back(name);
    FindVerbs(*verb, name, verbs);
  }
}

TEST_F(ProgramTest, HelpIsLegibleOnATerminalOf80Columns) {
  CLI::App app("", "ampctl");
  CommandContext context;
  AddProgram(&app, &context);
  std::vector<std::vector<std::string>> verbs = {{}};
  FindVerbs(app, {}, &verbs);
  EXPECT_GT(verbs.size(), 40u);
  for (std::vector<std::string> verb : verbs) {
    const std::string name = absl::StrJoin(verb, " ");
    SCOPED_TRACE(name);
    verb.push_back("--help");
    EXPECT_EQ(Run(verb), 0);
    EXPECT_THAT(out(), HasSubstr("Usage: ampctl" + (name.empty() ? "" : " " + name) + " [options]"));
    EXPECT_THAT(out(), AnyOf(HasSubstr("Example:\n  ampctl "), HasSubstr("Examples:\n  ampctl "),
                             HasSubstr("Example:\n  source <(ampctl ")));
    for (const absl::string_view line : absl::StrSplit(out(), '\n')) EXPECT_LE(line.size(), 80u) << line;
    // How CLI11 says what it checks.
    for (const char* noise : {" in [", ":{", " TEXT", " INT", "UINT", "FLOAT", "ENUM", "REQUIRED", "(Env:", "e+0"}) {
      EXPECT_THAT(out(), Not(HasSubstr(noise)));
    }
  }
}

TEST_F(ProgramTest, HelpNamesValuesDefaultsAndVariables) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("\n  --key FILE              PEM file of its private key [env: AMPD_KEY]\n"));
  EXPECT_THAT(out(), HasSubstr("\n  -o, --output FORMAT     table (default), json, jsonl or yaml\n"));
  EXPECT_THAT(out(), HasSubstr("\nVerbs:\n  submit       Queue the job"));
  EXPECT_EQ(Run({"list", "--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("\n  --limit N               At most this many [default: 50]\n"));
  EXPECT_EQ(Run({"tokens", "create", "--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("--role ROLE             viewer, submitter or admin [required]\n"));
  EXPECT_EQ(Run({"cancel", "--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("Usage: ampctl cancel [options] [JOB...]\n"));
  EXPECT_THAT(out(), HasSubstr("Options of all verbs: ampctl --help"));
}

}  // namespace
}  // namespace ampd::client
