// Which devices are alike, and what of them jobs can share.
#ifndef AMPD_SERVER_SCHEDULING_DEVICE_GROUPS_H_
#define AMPD_SERVER_SCHEDULING_DEVICE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ampd/v1/device.pb.h"

namespace ampd {

// By device, the number of its group: those of one kind and name are of one, from 0 in the order in which they come.
std::vector<int> DeviceGroups(const std::vector<v1::Device>& devices);

// What jobs that share devices[i] may plan together, bytes: its memory; of a CPU device an equal part of the machine's,
// which all of them have. 0 where it is not known.
int64_t ShareBytes(const std::vector<v1::Device>& devices, size_t i);

// What a job that has the device to itself may plan, bytes: a GPU's memory. 0 where it is not known, and of a CPU
// device, on which a job has whatever the machine can spare.
int64_t OwnBytes(const v1::Device& device);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_DEVICE_GROUPS_H_
