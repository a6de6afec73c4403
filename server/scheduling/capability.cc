#include "server/scheduling/capability.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd {
namespace {

using v1::PrecisionSpec;

struct Need {
  std::string field;
  PrecisionSpec::Mode mode;
};

std::vector<Need> NeedsOf(const v1::JobSpec& spec) {
  // A mode that the device cannot do is a cell that says so.
  if (spec.has_bench()) return {};
  const PrecisionSpec& precision = spec.precision();
  std::vector<Need> needs = {{"precision.mode", precision.mode()}};
  // Modes that nobody named are those that the device can do.
  for (int i = 0; precision.mode() == PrecisionSpec::AUTO && i < precision.auto_().modes_size(); ++i) {
    needs.push_back({absl::StrCat("precision.auto.modes[", i, "]"), precision.auto_().modes(i)});
  }
  for (int i = 0; i < precision.rules_size(); ++i) {
    needs.push_back({absl::StrCat("precision.rules[", i, "].dtype"), precision.rules(i).dtype()});
  }
  if (precision.loss_scale().on_floor() == v1::LossScaleSpec::FALLBACK_BF16) {
    needs.push_back({"precision.loss_scale.on_floor", PrecisionSpec::BF16});
  }
  return needs;
}

std::string NameOf(const v1::Device& device) {
  return device.kind() == v1::Device::CUDA ? absl::StrCat(device.name(), " (", device.id(), ")") : device.id();
}

// Whether the job may wait for its end.
bool Passes(v1::DeviceCondition::Kind kind) {
  return kind == v1::DeviceCondition::FOREIGN_PROCESS || kind == v1::DeviceCondition::GPU_LOST ||
         kind == v1::DeviceCondition::NO_ANSWER || kind == v1::DeviceCondition::HARDWARE_ERROR;
}

std::vector<FieldViolation> ModeRefusals(const v1::JobSpec& spec, const v1::Device& device) {
  std::vector<FieldViolation> refusals;
  if (device.kind() != v1::Device::CUDA || !device.gpu().has_compute_capability_major()) return refusals;
  const ComputeCapability has{device.gpu().compute_capability_major(), device.gpu().compute_capability_minor()};
  for (const Need& need : NeedsOf(spec)) {
    const ComputeCapability lowest = LowestCapability(need.mode);
    if (has >= lowest) continue;
    refusals.push_back(
        {need.field, absl::StrCat(PrecisionSpec::Mode_Name(need.mode), " needs compute capability ", lowest.major, ".",
                                  lowest.minor, " or later; ", NameOf(device), " has ", has.major, ".", has.minor,
                                  has.major < 7 ? ", and no tensor cores" : "")});
  }
  return refusals;
}

}  // namespace

std::vector<FieldViolation> Refusals(const v1::JobSpec& spec, const v1::Device& device) {
  const std::string& wanted = spec.resources().device();
  if (!wanted.empty() && wanted != device.id()) {
    return {{"resources.device", absl::StrCat("is ", wanted, ", not ", NameOf(device))}};
  }
  std::vector<FieldViolation> refusals = ModeRefusals(spec, device);
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (!condition.blocks_jobs() || Passes(condition.kind())) continue;
    refusals.push_back(
        {"resources", absl::StrCat(NameOf(device), ": ", v1::DeviceCondition::Kind_Name(condition.kind()), ": ",
                                   condition.message())});
  }
  return refusals;
}

absl::Status CheckDevices(const v1::JobSpec& spec, const std::vector<v1::Device>& devices) {
  const std::string& wanted = spec.resources().device();
  const auto is_wanted = [&](const v1::Device& device) { return wanted.empty() || device.id() == wanted; };
  if (std::none_of(devices.begin(), devices.end(), is_wanted)) {
    std::vector<std::string> names;
    for (const v1::Device& device : devices) names.push_back(NameOf(device));
    return InvalidFields(
        {{"resources.device", absl::StrCat("no such device; there are ", absl::StrJoin(names, ", "))}});
  }
  // By field, in the order in which fields first come.
  std::vector<std::pair<std::string, std::vector<std::string>>> by_field;
  for (const v1::Device& device : devices) {
    if (!is_wanted(device)) continue;
    std::vector<FieldViolation> refusals = Refusals(spec, device);
    if (refusals.empty()) return absl::OkStatus();
    for (FieldViolation& refusal : refusals) {
      auto known =
          std::find_if(by_field.begin(), by_field.end(), [&](const auto& f) { return f.first == refusal.field; });
      if (known == by_field.end()) known = by_field.insert(known, {refusal.field, {}});
      known->second.push_back(std::move(refusal.description));
    }
  }
  std::vector<FieldViolation> violations;
  for (auto& [field, descriptions] : by_field) {
    violations.push_back({field, absl::StrCat("no device can run this job: ", absl::StrJoin(descriptions, "; "))});
  }
  return InvalidFields(violations);
}

}  // namespace ampd
