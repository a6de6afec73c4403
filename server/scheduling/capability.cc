#include "server/scheduling/capability.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/scheduling/device_groups.h"

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

// Whether the job may wait for its end. All that comes and goes with readings does: which devices a queued job can use
// is found once.
bool Passes(v1::DeviceCondition::Kind kind) {
  return kind == v1::DeviceCondition::MIG_ENABLED || kind == v1::DeviceCondition::FOREIGN_PROCESS ||
         kind == v1::DeviceCondition::GPU_LOST || kind == v1::DeviceCondition::NO_ANSWER ||
         kind == v1::DeviceCondition::HARDWARE_ERROR || kind == v1::DeviceCondition::DRAINED;
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

bool HasWord(const std::string& name, const std::string& word) {
  for (const absl::string_view part : absl::StrSplit(name, absl::ByAnyChar(" -_/()"), absl::SkipEmpty())) {
    if (absl::EqualsIgnoreCase(part, word)) return true;
  }
  return false;
}

std::vector<FieldViolation> SelectorRefusals(const v1::DeviceSelector& selector, const v1::Device& device) {
  const std::string path = "resources.selector.";
  std::vector<FieldViolation> refusals;
  if (selector.kind() != v1::Device::KIND_UNSPECIFIED && selector.kind() != device.kind()) {
    refusals.push_back({path + "kind", absl::StrCat("is ", v1::Device::Kind_Name(selector.kind()), ", ", NameOf(device),
                                                    " is ", v1::Device::Kind_Name(device.kind()))});
  }
  for (int i = 0; i < selector.words_size(); ++i) {
    if (HasWord(device.name(), selector.words(i))) continue;
    refusals.push_back(
        {absl::StrCat(path, "words[", i, "]"),
         absl::StrCat(NameOf(device), " is called \"", device.name(), "\", without the word ", selector.words(i))});
  }
  if (device.memory_total_bytes() < selector.min_memory_bytes()) {
    refusals.push_back({path + "min_memory_bytes",
                        absl::StrCat("is ", selector.min_memory_bytes(), ", ", NameOf(device), " has ",
                                     device.has_memory_total_bytes() ? absl::StrCat(device.memory_total_bytes())
                                                                     : "an unknown amount")});
  }
  const double capability = device.gpu().compute_capability_major() + 0.1 * device.gpu().compute_capability_minor();
  // 8.9 is not a sum of tenths.
  if (capability < selector.min_compute_capability() - 1e-6) {
    refusals.push_back({path + "min_compute_capability",
                        absl::StrCat("is ", selector.min_compute_capability(), ", ", NameOf(device), " has ",
                                     capability > 0 ? absl::StrCat(capability) : "none that is known")});
  }
  return refusals;
}

// Enough of one kind and model for a gang.
absl::Status CheckGang(const v1::JobSpec& spec, const std::vector<v1::Device>& devices) {
  const int gpus = spec.resources().gpus();
  if (gpus <= 1) return absl::OkStatus();
  const std::vector<int> groups = DeviceGroups(devices);
  std::map<int, int> counts;
  for (size_t i = 0; i < devices.size(); ++i) counts[groups[i]] += CanRun(spec, devices[i]) ? 1 : 0;
  int most = 0;
  for (const auto& [group, count] : counts) most = std::max(most, count);
  if (most >= gpus) return absl::OkStatus();
  return InvalidFields(
      {{"resources.gpus", absl::StrCat("is ", gpus, "; of the devices that can run this job there are ", most,
                                       " of one kind and model")}});
}

}  // namespace

std::vector<FieldViolation> Refusals(const v1::JobSpec& spec, const v1::Device& device) {
  const std::string& wanted = spec.resources().device();
  if (!wanted.empty() && wanted != device.id()) {
    return {{"resources.device", absl::StrCat("is ", wanted, ", not ", NameOf(device))}};
  }
  std::vector<FieldViolation> refusals = SelectorRefusals(spec.resources().selector(), device);
  for (FieldViolation& refusal : ModeRefusals(spec, device)) refusals.push_back(std::move(refusal));
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (!condition.blocks_jobs() || Passes(condition.kind())) continue;
    refusals.push_back(
        {"resources", absl::StrCat(NameOf(device), ": ", v1::DeviceCondition::Kind_Name(condition.kind()), ": ",
                                   condition.message())});
  }
  return refusals;
}

bool ExceedsMemory(const v1::ModelPlan& plan, const v1::Device& device) {
  const double planned = static_cast<double>(plan.parameter_bytes() + plan.activation_bytes());
  const double least = device.kind() == v1::Device::CPU ? planned : kLeastOfPlan * planned;
  return device.memory_total_bytes() > 0 && least > static_cast<double>(device.memory_total_bytes());
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
    if (refusals.empty()) return CheckGang(spec, devices);
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

absl::Status CheckDeviceQuota(const v1::JobSpec& spec, int max_running_devices_per_user) {
  const int gpus = spec.resources().gpus();
  if (max_running_devices_per_user <= 0 || gpus <= max_running_devices_per_user) return absl::OkStatus();
  return InvalidFields(
      {{"resources.gpus", absl::StrCat("is ", gpus, "; a user's jobs may hold at most ", max_running_devices_per_user,
                                       " at the same time (max_running_devices_per_user)")}});
}

absl::Status CheckPrices(const v1::JobSpec& spec, const std::vector<v1::Device>& devices,
                         const std::vector<v1::DeviceModel>& models) {
  if (!spec.limits().has_max_cost_usd()) return absl::OkStatus();
  const std::string& wanted = spec.resources().device();
  const bool priced = std::any_of(devices.begin(), devices.end(), [&](const v1::Device& device) {
    const v1::DeviceModel* model = ModelOfDevice(models, device);
    return (wanted.empty() || device.id() == wanted) && CanRun(spec, device) && model != nullptr &&
           model->usd_per_hour() > 0;
  });
  if (priced) return absl::OkStatus();
  return InvalidFields({{"limits.max_cost_usd",
                         "no device that can run this job has a price; the server's configuration gives one "
                         "(device_models: [{name: ..., usd_per_hour: ...}])"}});
}

}  // namespace ampd
