#include "tests/fuzz/job_spec.h"

#include "google/protobuf/util/message_differencer.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"
#include "server/scheduling/capability.h"
#include "server/service/data_paths.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

void CheckRefusal(const absl::Status& status) {
  if (status.ok()) return;
  Check(absl::IsInvalidArgument(status), "not INVALID_ARGUMENT: " + status.ToString());
  const auto violations = FieldViolationsOf(status);
  Check(!violations.empty(), "no field is named: " + status.ToString());
  for (const FieldViolation& violation : violations) {
    // The spec as a whole has no name.
    Check(!violation.description.empty(), status.ToString());
  }
}

bool Equal(v1::JobSpec a, v1::JobSpec b) {
  a.DiscardUnknownFields();
  b.DiscardUnknownFields();
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

void CheckReadBack(const v1::JobSpec& spec) {
  const std::string yaml = ToYaml(spec);
  // Longer than a job file may be.
  if (yaml.size() > size_t{4} << 20) return;
  v1::JobSpec again;
  const absl::Status status = ParseYaml(yaml, "again.yaml", &again);
  Check(status.ok(), "written, not read: " + status.ToString() + "\n" + yaml);
  Check(Equal(again, spec), "read back otherwise:\n" + yaml);
}

}  // namespace

void Submit(const v1::JobSpec& spec) {
  const auto resolved = ResolveJobSpec(spec);
  CheckRefusal(resolved.status());
  if (!resolved.ok()) return;
  const v1::JobSpec& proto = resolved->proto();
  const auto again = ResolveJobSpec(proto);
  Check(again.ok(), "resolved, and then refused: " + again.status().ToString());
  Check(Equal(again->proto(), proto), "resolving twice gives another spec");
  CheckRefusal(CheckDataPaths(proto, {"/data", "/srv/sets"}));
  CheckRefusal(CheckDataPaths(proto, {}));
  v1::Device device;
  device.set_id("cpu-0");
  device.set_kind(v1::Device::CPU);
  CheckRefusal(CheckDevices(proto, {device}));
  device.set_kind(v1::Device::CUDA);
  CheckRefusal(CheckDevices(proto, {device}));
  // Text that is not UTF-8 gets past no parser of messages.
  if (v1::JobSpec().ParseFromString(proto.SerializeAsString())) CheckReadBack(proto);
}

}  // namespace ampd::fuzz
