// What a step of a planned model costs on a kind of device, layer by layer, by the roofline model.
#ifndef AMPD_ENGINE_TRAIN_PLAN_COSTS_H_
#define AMPD_ENGINE_TRAIN_PLAN_COSTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/plan.pb.h"
#include "engine/train/planned_model.h"

namespace ampd::train {

// A product as a matrix unit sees it: result [m, n] by sums over k; a convolution as the implicit one.
struct ProductShape {
  int64_t m = 1, n = 1, k = 1;
  // Extents that lie contiguous in memory, which is what alignment is asked of, by name: "K", "N", "channels", ...
  std::vector<std::pair<std::string, int64_t>> contiguous;
  // Of the operands; tf32: f32 that may be rounded.
  DType dtype = DType::kF32;
  bool tf32 = false;

  // What contiguous extents must be multiples of for a matrix unit: 16 bytes of operands.
  int64_t multiple() const { return IsF8(dtype) ? 16 : tf32 || dtype == DType::kF32 ? 4 : 8; }
  // The mode whose peak it has.
  v1::PrecisionSpec::Mode mode() const;
};

// nullopt: the step is no product.
absl::optional<ProductShape> ProductOf(const runtime::PlanStep& step);

// Whether `mode` is, for all that is known, emulated: on a CPU that has no peak for it. How long that takes no roofline
// tells.
bool IsEmulated(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode);

// Whether products of `mode` have no floor there: they are emulated, or the device cannot do them.
bool HasNoFloor(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode);

// A contiguous extent that is no multiple of what a matrix unit asks for.
struct Misalignment {
  std::string name;
  int64_t extent = 0;
  int64_t multiple = 1;

  bool operator==(const Misalignment&) const = default;
};

// Why a product does not have the model's peak of its mode. That of a GPU is its matrix units', which ask for
// alignment; of a CPU it is what was configured.
struct Ineligibility {
  // Whatever its extents; empty: none of these reasons.
  std::string reason;
  // Without a reason, every extent that keeps it away.
  std::vector<Misalignment> extents;

  bool any() const { return !reason.empty() || !extents.empty(); }
};
Ineligibility IneligibilityOf(const ProductShape& product, const v1::DeviceModel& model);

struct StepCosts {
  // In the order in which layers first run; what belongs to no layer is "loss". One entry a phase and layer.
  std::vector<v1::LayerCost> layers;
  double flops = 0;
  double bytes = 0;
  // 0 where the device's peaks or bandwidth are not known, or the job's or a product's mode has no floor there; so are
  // the layers'.
  double seconds = 0;
  // Floor of each product, by the phase's name and the node's; seconds.
  std::map<std::string, double> products;
  // Operations in products, and those of them that matrix units do.
  double product_flops = 0;
  double eligible_flops = 0;
  // Of those in products, what is not padding.
  double useful_flops = 0;
};

// Of one step (an update) of `planned`: every micro-batch, forward and backward, and the parameters' update; a phase by
// the share of steps in which it runs; with length buckets the mean of steps in `bucket_shares` (of the batches, one a
// plan, in their order), or where these are empty the longest. With resources.gpus of one device, which takes its share
// of the batch; that devices add up their gradients is not in it.
//
// A kernel takes at least its operations over the peak of its kind (products on matrix units: the peak of their dtype,
// on a GPU whole tiles of 8 rows, columns and sums counted; anything else: FP32's) and its bytes over the memory's
// bandwidth: inputs read once, outputs written once. Floors of kernels add up.
StepCosts CostsOf(const ResolvedJobSpec& spec, const PlannedModel& planned, const v1::DeviceModel& model,
                  absl::Span<const double> bucket_shares = {});

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLAN_COSTS_H_
