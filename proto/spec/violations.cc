#include "proto/spec/violations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
// Whatever they quote, an answer holds several of them (server/service/grpc_status.cc).
constexpr size_t kMostDescriptionBytes = 1000;

}  // namespace

bool Interval::Contains(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Interval::ToString() const {
  if (std::isinf(high)) return absl::StrCat(low_open ? "> " : ">= ", low);
  return absl::StrCat("in ", low_open ? "(" : "[", low, ", ", high, high_open ? ")" : "]");
}

void Violations::Add(std::string field, std::string description) {
  if (!full()) list_.push_back({std::move(field), std::move(description)});
}

void Violations::CheckInteger(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value < low) Add(std::string(field), absl::StrCat("must be at least ", low, ", is ", value));
  if (value > high) Add(std::string(field), absl::StrCat("must be at most ", high, ", is ", value));
}

void Violations::CheckReal(absl::string_view field, double value, const Interval& interval) {
  if (!std::isfinite(value) || interval.Contains(value)) return;
  Add(std::string(field), absl::StrCat("must be ", interval.ToString(), ", is ", value));
}

void Violations::CheckText(absl::string_view field, absl::string_view value, size_t max_bytes) {
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); };
  if (value.empty()) {
    Add(std::string(field), "required");
  } else if (value.size() > max_bytes) {
    Add(std::string(field), absl::StrCat("must be at most ", max_bytes, " bytes, is ", value.size()));
  } else if (std::any_of(value.begin(), value.end(), is_control)) {
    Add(std::string(field), absl::StrCat("must not hold control characters, is ", Quoted(value)));
  }
}

absl::Status InvalidFields(const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest details;
  for (const FieldViolation& violation : violations) {
    auto* added = details.add_field_violations();
    added->set_field(Cut(violation.field, kMostFieldBytes));
    added->set_description(Cut(violation.description, kMostDescriptionBytes));
  }
  const auto format = [](std::string* out, const google::rpc::BadRequest::FieldViolation& v) {
    absl::StrAppend(out, v.field(), v.field().empty() ? "" : ": ", v.description());
  };
  absl::Status status = absl::InvalidArgumentError(absl::StrJoin(details.field_violations(), "; ", format));
  status.SetPayload(kBadRequestUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  const auto payload = status.GetPayload(kBadRequestUrl);
  google::rpc::BadRequest details;
  if (!payload.has_value() || !details.ParseFromString(std::string(*payload))) return violations;
  for (const auto& v : details.field_violations()) violations.push_back({v.field(), v.description()});
  return violations;
}

}  // namespace ampd
