#include "engine/train/failure.h"

#include "engine/core/status.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

TEST(Failure, UnmarkedErrorsAreClassedByCode) {
  EXPECT_EQ(FailureOf(absl::InvalidArgumentError("x")).class_(), v1::Failure::INVALID_SPEC);
  EXPECT_EQ(FailureOf(absl::UnimplementedError("x")).class_(), v1::Failure::INVALID_SPEC);
  EXPECT_EQ(FailureOf(absl::DataLossError("x")).class_(), v1::Failure::DATA);
  EXPECT_EQ(FailureOf(absl::ResourceExhaustedError("x")).class_(), v1::Failure::OUT_OF_MEMORY);
  EXPECT_EQ(FailureOf(absl::UnknownError("x")).class_(), v1::Failure::INTERNAL);
}

TEST(Failure, TheFirstMarkStaysThroughAnnotation) {
  const absl::Status marked = WithFailureClass(absl::NotFoundError("no file"), v1::Failure::DATA);
  const absl::Status status = WithFailureClass(Annotate(marked, "data.train"), v1::Failure::INTERNAL);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DATA);
  EXPECT_EQ(FailureOf(status).message(), "data.train: no file");
  EXPECT_TRUE(WithFailureClass(absl::OkStatus(), v1::Failure::DATA).ok());
}

// The judge is protobuf, which reads no other text.
TEST(Failure, WhatItQuotesIsUtf8) {
  const v1::Failure failure = FailureOf(absl::DataLossError("caf\xe9.csv: is empty"));
  v1::Failure parsed;
  ASSERT_TRUE(parsed.ParseFromString(failure.SerializeAsString()));
  EXPECT_EQ(parsed.message(), "caf\xef\xbf\xbd.csv: is empty");
  EXPECT_EQ(FailureOf(absl::DataLossError("caf\xc3\xa9")).message(), "caf\xc3\xa9");
}

}  // namespace
}  // namespace ampd::train
