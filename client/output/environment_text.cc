#include "client/output/environment_text.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd::client {
namespace {

std::string DevicesText(const v1::AttemptEnvironment& environment) {
  const auto& devices = environment.devices();
  const bool all_equal =
      std::all_of(devices.begin(), devices.end(), [&](const std::string& name) { return name == devices[0]; });
  if (!all_equal) return absl::StrJoin(devices, ", ");
  return devices.size() == 1 ? devices[0] : absl::StrCat(devices.size(), " x ", devices[0]);
}

}  // namespace

std::vector<EnvironmentPart> EnvironmentParts(const v1::AttemptEnvironment& environment) {
  std::vector<EnvironmentPart> parts;
  if (!environment.engine_version().empty()) parts.push_back({"engine", environment.engine_version()});
  if (!environment.devices().empty()) parts.push_back({"device", DevicesText(environment)});
  // A map of protobuf's has no order.
  const std::map<std::string, std::string> libraries(environment.libraries().begin(), environment.libraries().end());
  for (const auto& [name, version] : libraries) parts.push_back({name, version});
  if (environment.cpu_threads() > 0) parts.push_back({"threads", absl::StrCat(environment.cpu_threads())});
  if (!environment.instruction_set().empty()) parts.push_back({"instructions", environment.instruction_set()});
  return parts;
}

}  // namespace ampd::client
