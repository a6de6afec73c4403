// Errors as gRPC's headers carry them.
#include "server/service/grpc_status.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

std::vector<FieldViolation> Wrong(size_t count, size_t bytes) {
  std::vector<FieldViolation> violations;
  for (size_t i = 0; i < count; ++i) violations.push_back({absl::StrCat("f", i), std::string(bytes, 'x')});
  return violations;
}

TEST(GrpcStatus, CarriesCodeMessageAndDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const absl::Status sent = InvalidFields(Wrong(3, 10)), got = FromGrpcStatus(ToGrpcStatus(sent));
  EXPECT_EQ(got, sent);
  EXPECT_EQ(FieldViolationsOf(got).size(), 3u);
}

// What a client marks in a job file: the first ones, rather than none.
TEST(GrpcStatus, OfTooManyViolationsTheFirstArePassedOn) {
  for (const size_t bytes : {0, 1, 17, 100, 950}) {
    for (const size_t count : {1, 2, 3, 5, 20, 60, 200}) {
      SCOPED_TRACE(absl::StrCat(count, " of ", bytes));
      const std::vector<FieldViolation> wrong = Wrong(count, bytes);
      const grpc::Status sent = ToGrpcStatus(InvalidFields(wrong));
      // gRPC's bound is 8 KiB, with names and what else there is; base64 takes a third more.
      EXPECT_LE(sent.error_message().size() + sent.error_details().size() * 4 / 3, 7700u);
      const std::vector<FieldViolation> got = FieldViolationsOf(FromGrpcStatus(sent));
      ASSERT_FALSE(got.empty());
      const bool all = got.back().field == wrong.back().field;
      const size_t kept = all ? got.size() : got.size() - 1;
      for (size_t i = 0; i < kept; ++i) {
        EXPECT_EQ(got[i].field, wrong[i].field);
        EXPECT_EQ(got[i].description, wrong[i].description);
      }
      if (!all) {
        EXPECT_EQ(got.back().description, absl::StrCat("and ", count - kept, " more"));
        // One more would not have been much too large.
        EXPECT_GT(sent.error_details().size() + bytes + 110, 4200u);
      } else {
        EXPECT_EQ(kept, count);
      }
    }
  }
}

TEST(GrpcStatus, OtherDetailsStay) {
  absl::Status status = TryAgain("full", absl::Seconds(7));
  const absl::Status wrong = InvalidFields(Wrong(100, 90));
  wrong.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  const absl::Status got = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(got.GetPayload("type.googleapis.com/google.rpc.RetryInfo"),
            status.GetPayload("type.googleapis.com/google.rpc.RetryInfo"));
  EXPECT_GT(FieldViolationsOf(got).size(), 5u);
}

}  // namespace
}  // namespace ampd
