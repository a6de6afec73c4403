// The exporter's process, played by shell scripts.
#include "server/launch/export_process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

absl::Status Export(const std::string& script, ExchangeLimits limits = {}) {
  const std::string path = absl::StrCat(testing::TempDir(), "/exporter_", getpid(), ".sh");
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  chmod(path.c_str(), 0700);
  const absl::Status status = RunExportProcess(path, v1::ExportRequest(), "/the/file", limits);
  unlink(path.c_str());
  return status;
}

TEST(ExportProcess, IsToldTheFile) {
  EXPECT_TRUE(Export("test \"$1 $2\" = '--export /the/file' || exit 9; cat >/dev/null").ok());
}

TEST(ExportProcess, GivesTheWorkersErrors) {
  v1::ExportResponse response;
  response.set_error("head.weight is too large");
  response.set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  const std::string answer = absl::StrCat(testing::TempDir(), "/answer_", getpid());
  std::ofstream(answer, std::ios::binary) << response.SerializeAsString();
  const absl::Status status = Export("cat >/dev/null; exec cat " + answer);
  unlink(answer.c_str());
  EXPECT_EQ(status, absl::FailedPreconditionError("head.weight is too large"));
}

TEST(ExportProcess, TellsOfCrashesRubbishAndTime) {
  const absl::Status crash = Export("echo the reason >&2; kill -SEGV $$");
  EXPECT_TRUE(absl::IsInternal(crash));
  EXPECT_THAT(std::string(crash.message()), HasSubstr("exporting the model: the exporter was ended by signal 11"));
  EXPECT_THAT(std::string(crash.message()), HasSubstr("it said: the reason"));
  EXPECT_THAT(std::string(Export("cat >/dev/null; echo rubbish").message()), HasSubstr("not an ExportResponse"));
  ExchangeLimits limits;
  limits.timeout = absl::Milliseconds(100);
  EXPECT_TRUE(absl::IsFailedPrecondition(Export("sleep 1000", limits)));
}

TEST(ExportProcess, EndsOnceItIsStopped) {
  StopEvent never, stop;
  ExchangeLimits limits;
  limits.timeout = absl::Minutes(10);
  limits.stops = {&never, &stop};
  const std::string started = absl::StrCat(testing::TempDir(), "/started_", getpid());
  mkfifo(started.c_str(), 0600);
  pid_t pid = 0;
  std::thread stopper([&] {
    // Opens once the script writes.
    std::ifstream(started) >> pid;
    stop.Set();
  });
  const absl::Status stopped = Export(absl::StrCat("echo $$ > ", started, "; exec sleep 1000"), limits);
  stopper.join();
  unlink(started.c_str());
  EXPECT_EQ(stopped, absl::UnavailableError("exporting the model: the exporter was stopped"));
  EXPECT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), -1) << "it is still there";
  // None is started any more.
  const std::string touched = absl::StrCat(testing::TempDir(), "/touched_", getpid());
  EXPECT_TRUE(absl::IsUnavailable(Export("touch " + touched, limits)));
  EXPECT_NE(access(touched.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace ampd
