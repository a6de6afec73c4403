// Which device can do which precision mode, and so which job.
#ifndef AMPD_SERVER_SCHEDULING_CAPABILITY_H_
#define AMPD_SERVER_SCHEDULING_CAPABILITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "proto/spec/device_models.h"
#include "proto/spec/resolve.h"

namespace ampd {

// Why `device` cannot run a job of the resolved `spec`, by field; empty: it can. A CPU device can do every mode, and so
// can, as far as is known, a GPU whose compute capability is not. A condition of the device that passes (a process of
// others, an error) is no reason; one that does not (no CUDA build, an old driver, MIG) is, with field "resources".
std::vector<FieldViolation> Refusals(const v1::JobSpec& spec, const v1::Device& device);

inline bool CanRun(const v1::JobSpec& spec, const v1::Device& device) { return Refusals(spec, device).empty(); }

// What a job takes on a GPU at least, of a plan for the CPU's kernels, which have larger workspaces and more copies:
// 0.87 of GPT-2's, of other presets' more.
inline constexpr double kLeastOfPlan = 0.8;

// Whether the planned model takes more memory, on a GPU at least, than `device` has in all; false where either is not
// known.
bool ExceedsMemory(const v1::ModelPlan& plan, const v1::Device& device);

// OK when one of `devices` can run the job, of one kind and model as many as resources.gpus asks for; else
// INVALID_ARGUMENT, the refusals of every device by field.
absl::Status CheckDevices(const v1::JobSpec& spec, const std::vector<v1::Device>& devices);

// OK when the job asks for no more devices than a user's jobs may hold at the same time, 0: any number; else
// INVALID_ARGUMENT: it would wait for ever.
absl::Status CheckDeviceQuota(const v1::JobSpec& spec, int max_running_devices_per_user);

// OK when the job has no limits.max_cost_usd, or one of `devices` that can run it has a price among `models`; else
// INVALID_ARGUMENT: what cannot be enforced is refused.
absl::Status CheckPrices(const v1::JobSpec& spec, const std::vector<v1::Device>& devices,
                         const std::vector<v1::DeviceModel>& models);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_CAPABILITY_H_
