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

}  // namespace
}  // namespace ampd::train
