#include "server/scheduling/device_groups.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace ampd {

std::vector<int> DeviceGroups(const std::vector<v1::Device>& devices) {
  std::map<std::pair<int, std::string>, int> known;
  std::vector<int> groups;
  for (const v1::Device& device : devices) {
    groups.push_back(known.try_emplace({device.kind(), device.name()}, static_cast<int>(known.size())).first->second);
  }
  return groups;
}

int64_t ShareBytes(const std::vector<v1::Device>& devices, size_t i) {
  if (devices[i].kind() != v1::Device::CPU) return devices[i].memory_total_bytes();
  const auto cpus = std::count_if(devices.begin(), devices.end(),
                                  [](const v1::Device& device) { return device.kind() == v1::Device::CPU; });
  return devices[i].memory_total_bytes() / cpus;
}

int64_t OwnBytes(const v1::Device& device) {
  return device.kind() == v1::Device::CUDA ? device.memory_total_bytes() : 0;
}

}  // namespace ampd
