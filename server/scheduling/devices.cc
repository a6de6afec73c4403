#include "server/scheduling/devices.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ampd {
namespace {

constexpr int kMaxCpuDevices = 1024;

// The value of the first line "key   : value" of a file in /proc; empty when there is none.
std::string ProcValue(const char* path, absl::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, key)) continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) != key) continue;
    return std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return "";
}

// A "123 kB" value of /proc/meminfo in bytes; 0 when it cannot be read.
int64_t MemoryBytes(absl::string_view key) {
  const std::string value = ProcValue("/proc/meminfo", key);
  int64_t kilobytes = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(value, " kB"), &kilobytes) || kilobytes < 0) return 0;
  return kilobytes > INT64_MAX / 1024 ? 0 : kilobytes * 1024;
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

absl::StatusOr<std::vector<v1::Device>> CpuDevices(int count) {
  if (count < 1 || count > kMaxCpuDevices) {
    return absl::InvalidArgumentError(absl::StrCat("cpu_devices: ", count, " is not in 1..", kMaxCpuDevices));
  }
  const std::string model = ProcValue("/proc/cpuinfo", "model name");
  const int64_t memory = MemoryBytes("MemTotal");
  const int threads = std::max(1, UsableCores() / count);
  std::vector<v1::Device> devices(count);
  for (int i = 0; i < count; ++i) {
    devices[i].set_id(absl::StrCat("cpu-", i));
    devices[i].set_kind(v1::Device::CPU);
    devices[i].set_name(model.empty() ? "CPU" : model);
    devices[i].set_memory_total_bytes(memory);
    devices[i].set_threads(threads);
  }
  return devices;
}

int64_t MemoryUsedBytes() { return std::max<int64_t>(0, MemoryBytes("MemTotal") - MemoryBytes("MemAvailable")); }

}  // namespace ampd
