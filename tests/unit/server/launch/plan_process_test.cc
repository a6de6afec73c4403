// The planner's process, played by shell scripts.
#include "server/launch/plan_process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<v1::PlanResponse> Plan(const std::string& script, PlanLimits limits = {}, size_t request_bytes = 10) {
  const std::string path = absl::StrCat(testing::TempDir(), "/planner_", getpid(), ".sh");
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  chmod(path.c_str(), 0700);
  v1::PlanRequest request;
  request.add_data_roots(std::string(request_bytes, 'r'));
  auto response = RunPlanProcess(path, request, limits);
  unlink(path.c_str());
  return response;
}

TEST(PlanProcess, PassesTheRequestInAndTheAnswerOut) {
  // A PlanRequest whose only field is data_roots (2) has, but for the tag, the form of a PlanResponse with data_error
  // (3).
  const auto response = Plan("test \"$1\" = --plan || exit 9; head -c 1 >/dev/null; printf '\\032'; exec cat");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->data_error(), "rrrrrrrrrr");
}

TEST(PlanProcess, MovesMoreThanTheBuffersHold) {
  const auto response = Plan("head -c 1 >/dev/null; printf '\\032'; exec cat", {}, 3 << 20);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->data_error().size(), size_t{3} << 20);
}

TEST(PlanProcess, LargeModelsMayTakeLonger) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/plan_process_", getpid()), name = "model.onnx";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const std::string path = absl::StrCat(folder, "/", name);
  std::ofstream(path) << "";
  ASSERT_EQ(truncate(path.c_str(), off_t{1} << 30), 0);
  PlanLimits limits;
  limits.address_space_bytes = 1000;
  v1::PlanRequest request;
  request.add_data_roots("/no/such/folder");
  request.add_data_roots(folder);
  request.set_upload_dir(folder);
  const auto grown = [&](const std::string& named) {
    request.mutable_spec()->mutable_model()->mutable_onnx()->set_path(named);
    return GrownByModelFile(limits, request);
  };
  for (const std::string& named : {name, absl::StrCat("upload:", name)}) {
    EXPECT_GT(grown(named).timeout, limits.timeout) << named;
    EXPECT_GT(grown(named).cpu_seconds, limits.cpu_seconds) << named;
    EXPECT_GT(grown(named).address_space_bytes, uint64_t{1} << 30) << named;
  }
  EXPECT_EQ(grown("none.onnx").timeout, limits.timeout);
  EXPECT_EQ(grown("none.onnx").address_space_bytes, limits.address_space_bytes);
  // What is no limit stays none; what is larger than any model counts as one.
  limits.address_space_bytes = 0;
  EXPECT_EQ(grown(name).address_space_bytes, 0u);
  const absl::Duration of_one = grown(name).timeout - limits.timeout;
  ASSERT_EQ(truncate(path.c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(grown(name).timeout - limits.timeout, 2 * of_one);
  // The tensors of one beneath a root may lie in another file there.
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  ASSERT_EQ(mkdir(absl::StrCat(folder, "/sub").c_str(), 0700), 0);
  const std::string data = absl::StrCat(folder, "/sub/weights.bin");
  std::ofstream(data) << "";
  ASSERT_EQ(truncate(data.c_str(), off_t{1} << 30), 0);
  EXPECT_EQ(grown(name).timeout - limits.timeout, of_one);
  EXPECT_EQ(grown(path).timeout - limits.timeout, of_one) << "absolute";
  EXPECT_EQ(grown(absl::StrCat("upload:", name)).timeout, limits.timeout);
  for (const std::string& file : {path, data}) unlink(file.c_str());
  for (const std::string& one : {absl::StrCat(folder, "/sub"), folder}) rmdir(one.c_str());
  request.mutable_spec()->mutable_model()->clear_onnx();
  EXPECT_EQ(GrownByModelFile(limits, request).timeout, limits.timeout);
}

void ExpectFailure(const absl::StatusOr<v1::PlanResponse>& response, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(response.status().code(), code) << response.status();
  EXPECT_THAT(std::string(response.status().message()), HasSubstr(text));
}

TEST(PlanProcess, TellsOfACrash) {
  ExpectFailure(Plan("echo the reason >&2; kill -SEGV $$"), absl::StatusCode::kInternal, "signal 11");
  ExpectFailure(Plan("echo the reason >&2; kill -SEGV $$"), absl::StatusCode::kInternal, "it said: the reason");
  ExpectFailure(Plan("exit 4"), absl::StatusCode::kInternal, "exited with code 4");
}

TEST(PlanProcess, TellsOfRubbish) {
  ExpectFailure(Plan("cat >/dev/null; echo rubbish"), absl::StatusCode::kInternal, "not a PlanResponse");
  ExpectFailure(Plan("cat >/dev/null"), absl::StatusCode::kInternal, "not a PlanResponse");
}

TEST(PlanProcess, SurvivesAPlannerThatDoesNotRead) {
  ExpectFailure(Plan("exit 1", {}, 3 << 20), absl::StatusCode::kInternal, "exited with code 1");
}

TEST(PlanProcess, EndsOneThatTakesTooLongWithItsChildren) {
  PlanLimits limits;
  limits.timeout = absl::Milliseconds(100);
  // The child keeps stdout open; the answer must not wait for it.
  ExpectFailure(Plan("sleep 1000", limits), absl::StatusCode::kFailedPrecondition, "100ms");
  ExpectFailure(Plan("sleep 1000 & exit 1"), absl::StatusCode::kInternal, "exited with code 1");
}

TEST(PlanProcess, BoundsTheAnswer) {
  PlanLimits limits;
  limits.max_output_bytes = 1000;
  ExpectFailure(Plan("exec cat /dev/zero", limits), absl::StatusCode::kResourceExhausted, "larger than 1000");
}

TEST(PlanProcess, BoundsProcessorTimeAndMemory) {
  PlanLimits limits;
  limits.cpu_seconds = 1;
  ExpectFailure(Plan("while :; do :; done", limits), absl::StatusCode::kResourceExhausted, "signal");
  limits = PlanLimits();
  limits.address_space_bytes = 64 << 20;
  // The shell holds what it reads in memory.
  EXPECT_FALSE(Plan("cat >/dev/null; x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $x", limits).ok());
}

TEST(PlanProcess, APlannerWritesNoFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "/written_by_planner_", getpid());
  ExpectFailure(Plan("cat >/dev/null; echo x > " + path + " || exit 3"), absl::StatusCode::kInternal, "");
  std::ifstream file(path);
  EXPECT_EQ(file.peek(), std::ifstream::traits_type::eof());
  unlink(path.c_str());
}

TEST(PlanProcess, TellsOfAMissingWorker) {
  ExpectFailure(RunPlanProcess("/no/such/worker", v1::PlanRequest(), {}), absl::StatusCode::kUnavailable,
                "/no/such/worker");
}

}  // namespace
}  // namespace ampd
