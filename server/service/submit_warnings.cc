#include "server/service/submit_warnings.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/device_memory.h"
#include "proto/spec/schedule_warnings.h"
#include "server/scheduling/capability.h"

namespace ampd {
namespace {

void AddMemory(const v1::JobSpec& spec, const v1::ModelPlan& plan, const std::vector<v1::Device>& devices,
               std::vector<std::string>* warnings) {
  // Each size of a measurement tells for itself whether it fits.
  if (spec.has_bench()) return;
  const v1::Device* largest = nullptr;
  for (const v1::Device& device : devices) {
    if (!CanRun(spec, device)) continue;
    if (!ExceedsMemory(plan, device)) return;
    if (largest == nullptr || device.memory_total_bytes() > largest->memory_total_bytes()) largest = &device;
  }
  if (largest == nullptr) return;
  warnings->push_back(absl::StrCat(
      "resources: by its plan the job takes ", Gibibytes(plan.parameter_bytes() + plan.activation_bytes()),
      " of a device's memory, and of those that could run it none has more than ", largest->id(), ", ",
      Gibibytes(largest->memory_total_bytes()),
      ": it will run out of memory; ampctl plan tells what takes it, and which train.micro_batch_size fits"));
}

}  // namespace

std::vector<std::string> SubmitWarnings(const v1::JobSpec& spec, const v1::PlanResponse& planned,
                                        const std::vector<v1::Device>& devices) {
  std::vector<std::string> warnings;
  if (!planned.data_error().empty()) {
    warnings.push_back(
        absl::StrCat(planned.data_error(), "; the job fails unless it can be read by the time that it starts"));
  }
  AddMemory(spec, planned.plan(), devices, &warnings);
  if (!spec.train().has_steps()) return warnings;
  std::vector<std::string> schedules = ScheduleWarnings(spec, spec.train().steps());
  std::move(schedules.begin(), schedules.end(), std::back_inserter(warnings));
  return warnings;
}

}  // namespace ampd
