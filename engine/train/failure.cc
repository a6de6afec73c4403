#include "engine/train/failure.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "proto/spec/utf8.h"

namespace ampd::train {
namespace {

constexpr char kClassUrl[] = "type.googleapis.com/ampd.v1.Failure.Class";

absl::optional<v1::Failure::Class> MarkOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kClassUrl);
  v1::Failure::Class failure_class;
  if (!payload.has_value() || !v1::Failure::Class_Parse(std::string(*payload), &failure_class)) return absl::nullopt;
  return failure_class;
}

v1::Failure::Class ClassOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return v1::Failure::INVALID_SPEC;
    case absl::StatusCode::kDataLoss:
      return v1::Failure::DATA;
    case absl::StatusCode::kResourceExhausted:
      return v1::Failure::OUT_OF_MEMORY;
    case absl::StatusCode::kUnavailable:
      return v1::Failure::GPU_FAULT;
    default:
      return v1::Failure::INTERNAL;
  }
}

}  // namespace

absl::Status WithFailureClass(const absl::Status& status, v1::Failure::Class failure_class) {
  if (status.ok() || MarkOf(status).has_value()) return status;
  absl::Status marked = status;
  marked.SetPayload(kClassUrl, absl::Cord(v1::Failure::Class_Name(failure_class)));
  return marked;
}

v1::Failure FailureOf(const absl::Status& status) {
  v1::Failure failure;
  failure.set_class_(MarkOf(status).value_or(ClassOfCode(status.code())));
  // It may quote a file's name or what a file holds.
  failure.set_message(ValidUtf8(status.message()));
  return failure;
}

}  // namespace ampd::train
