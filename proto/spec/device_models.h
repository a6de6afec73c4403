// The one table of device kinds: what they can do at best, and what they cost. Peaks rate a job's use of its device,
// plans and costs are made with them.
#ifndef AMPD_PROTO_SPEC_DEVICE_MODELS_H_
#define AMPD_PROTO_SPEC_DEVICE_MODELS_H_

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/precision.pb.h"

namespace ampd {

struct ComputeCapability {
  int major = 0;
  int minor = 0;

  friend auto operator<=>(const ComputeCapability&, const ComputeCapability&) = default;
};

// The lowest compute capability whose tensor cores compute in `mode` (CUDA C++ Programming Guide, arithmetic of tensor
// cores): FP16 7.0, BF16 and TF32 8.0, FP8 8.9. 0.0 for FP32, which needs none. Earlier GPUs that store fp16 (5.3, 6.x)
// have no tensor cores to multiply it on.
ComputeCapability LowestCapability(v1::PrecisionSpec::Mode mode);

// The built-in kinds, in the order in which a device's name is looked up. Peaks are those that NVIDIA's data sheets
// tell of dense products (half of those "with sparsity") at boost clocks, and bandwidth is nominal, in units of 1e9;
// memory is the total that drivers report, of which a process has not quite all. "CPU" has neither peaks nor bandwidth:
// they differ from processor to processor, and no data sheet tells of products. Prices are examples of one date
// (docs/planning.md) to be replaced by one's own; 0 where none was found.
const std::vector<v1::DeviceModel>& BuiltInDeviceModels();

// The built-in kinds with `configured` in place of those of the same names (letters of either case), where a field that
// is 0 or empty keeps the built-in value; the others stand first, in their order. INVALID_ARGUMENT with one line each
// "device_models[i].FIELD: what is wrong": a name that is empty or stands twice, a number that is negative or not
// finite, a new kind that is neither CPU nor CUDA.
absl::StatusOr<std::vector<v1::DeviceModel>> DeviceModelsWith(
    const google::protobuf::RepeatedPtrField<v1::DeviceModel>& configured);

// Null when there is none of the name; letters of either case.
const v1::DeviceModel* FindDeviceModel(const std::vector<v1::DeviceModel>& models, absl::string_view name);

// The kind of `device`: the first of `models` of its kind all of whose words stand in its name, as words between blanks
// and hyphens. A kind without words fits any device of its kind, and none if that is CUDA. Null when none fits.
const v1::DeviceModel* ModelOfDevice(const std::vector<v1::DeviceModel>& models, const v1::Device& device);

// Peak of dense products in `mode`, floating-point operations a second; 0 where it is not known or there is no unit.
double PeakFlops(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode);

// Why a device of this kind cannot do `mode`; empty: it can. A CPU can do all; a GPU by its compute capability, or if
// that is not given (0.0), by its peak in the mode.
std::string ModeRefusal(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_DEVICE_MODELS_H_
