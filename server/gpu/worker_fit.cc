#include "server/gpu/worker_fit.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ampd {
namespace {

v1::DeviceCondition Blocking(v1::DeviceCondition::Kind kind, std::string message) {
  v1::DeviceCondition condition;
  condition.set_kind(kind);
  condition.set_blocks_jobs(true);
  condition.set_message(std::move(message));
  return condition;
}

// Of "13.0"; 0 for anything else.
int MajorOf(const std::string& version) {
  int major = 0;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(version, absl::MaxSplits('.', 1));
  return absl::SimpleAtoi(parts.first, &major) ? major : 0;
}

}  // namespace

std::vector<v1::DeviceCondition> WorkerFit(const v1::WorkerBuild& build, const v1::GpuStatus& gpu) {
  if (build.cuda_version() == 0) {
    return {Blocking(v1::DeviceCondition::NO_CUDA_BUILD, "the workers of this server are built without CUDA")};
  }
  std::vector<v1::DeviceCondition> conditions;
  const int driver = MajorOf(gpu.cuda_driver_version());
  if (driver != 0 && driver < build.cuda_version() / 1000) {
    conditions.push_back(Blocking(v1::DeviceCondition::DRIVER_TOO_OLD,
                                  absl::StrCat("driver ", gpu.driver_version(), " supports CUDA ",
                                               gpu.cuda_driver_version(), ", but the workers are built with CUDA ",
                                               build.cuda_version() / 1000, ".", build.cuda_version() % 1000 / 10,
                                               ", which needs a driver for CUDA ", build.cuda_version() / 1000)));
  }
  const int capability = gpu.compute_capability_major() * 10 + gpu.compute_capability_minor();
  if (gpu.has_compute_capability_major() && capability < build.min_compute_capability()) {
    conditions.push_back(Blocking(
        v1::DeviceCondition::UNSUPPORTED_ARCHITECTURE,
        absl::StrCat("compute capability ", gpu.compute_capability_major(), ".", gpu.compute_capability_minor(),
                     ", but the workers are built for ", build.min_compute_capability() / 10, ".",
                     build.min_compute_capability() % 10, " and later")));
  }
  return conditions;
}

}  // namespace ampd
