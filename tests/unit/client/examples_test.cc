// Every job file that ships is valid.
#include <filesystem>
#include <string>

#include "client/job_file.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"

namespace ampd::client {
namespace {

TEST(ExamplesTest, ResolveAndHaveNoUnknownFields) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("client/examples")) {
    const absl::StatusOr<JobFile> file = JobFile::Read(entry.path().string(), {});
    ASSERT_TRUE(file.ok()) << file.status().message();
    const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(file->spec());
    EXPECT_TRUE(resolved.ok()) << entry.path() << ": " << resolved.status().message();
    EXPECT_EQ(file->spec().name(), entry.path().stem().string());
    ++count;
  }
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace ampd::client
