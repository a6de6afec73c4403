#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

using google::protobuf::RepeatedField;
using v1::PrecisionSpec;

constexpr int64_t kMaxSteps = 100000;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int kMaxSizes = 64;
// With these no product of a few extents comes near 2^63.
constexpr int64_t kMaxExtent = 1 << 17;
constexpr int64_t kMaxChannels = 1 << 16;
constexpr int64_t kMaxKernel = 64;
constexpr int64_t kMaxImage = 4096;

// A measured mode: one that a job can train in, named once.
void CheckModes(const std::string& path, const RepeatedField<int>& modes, Violations* violations) {
  std::set<int> seen;
  for (int i = 0; i < modes.size(); ++i) {
    const auto mode = static_cast<PrecisionSpec::Mode>(modes.Get(i));
    if (mode == PrecisionSpec::MODE_UNSPECIFIED || mode == PrecisionSpec::AUTO) {
      violations->Add(Indexed(path, i), "must be FP32, TF32, FP16, BF16 or FP8");
    } else if (!seen.insert(mode).second) {
      violations->Add(Indexed(path, i), absl::StrCat("names ", PrecisionSpec::Mode_Name(mode), " a second time"));
    }
    if (violations->full()) return;
  }
}

void CheckSizes(const std::string& path, const RepeatedField<int64_t>& sizes, int64_t high, Violations* violations) {
  if (sizes.size() > kMaxSizes) {
    return violations->Add(path, absl::StrCat("must be at most ", kMaxSizes, ", are ", sizes.size()));
  }
  std::set<int64_t> seen;
  for (int i = 0; i < sizes.size(); ++i) {
    violations->CheckInteger(Indexed(path, i), sizes.Get(i), 1, high);
    if (!seen.insert(sizes.Get(i)).second) {
      violations->Add(Indexed(path, i), absl::StrCat("names ", sizes.Get(i), " a second time"));
    }
  }
}

void ResolveSweep(v1::Sweep* sweep, Violations* violations) {
  const auto fill = [](std::initializer_list<int64_t> values, RepeatedField<int64_t>* field) {
    if (field->empty()) field->Add(values.begin(), values.end());
  };
  switch (sweep->kind()) {
    case v1::Sweep::GEMM:
      fill({256, 512, 1024, 2048}, sweep->mutable_sizes());
      CheckSizes("bench.sweep.sizes", sweep->sizes(), kMaxExtent, violations);
      if (!sweep->kernels().empty()) violations->Add("bench.sweep.kernels", "needs kind CONV");
      if (sweep->has_image()) violations->Add("bench.sweep.image", "needs kind CONV");
      return;
    case v1::Sweep::CONV:
      fill({16, 32, 64, 128}, sweep->mutable_sizes());
      fill({1, 3, 5, 7}, sweep->mutable_kernels());
      if (!sweep->has_image()) sweep->set_image(32);
      CheckSizes("bench.sweep.sizes", sweep->sizes(), kMaxChannels, violations);
      CheckSizes("bench.sweep.kernels", sweep->kernels(), kMaxKernel, violations);
      violations->CheckInteger("bench.sweep.image", sweep->image(), 1, kMaxImage);
      return;
    default:
      violations->Add("bench.sweep.kind", "required, GEMM or CONV");
  }
}

// Each batch is cut as the job's: into its micro-batches, where it has smaller ones than its batch.
void CheckBatches(const v1::JobSpec& spec, Violations* violations) {
  const v1::BenchSpec& bench = spec.bench();
  CheckSizes("bench.batch_sizes", bench.batch_sizes(), kMaxBatch, violations);
  const int64_t micro = spec.train().micro_batch_size();
  if (micro < 1 || micro == spec.train().batch_size()) return;
  for (int i = 0; i < bench.batch_sizes_size() && !violations->full(); ++i) {
    if (bench.batch_sizes(i) <= micro || bench.batch_sizes(i) % micro == 0) continue;
    violations->Add(Indexed("bench.batch_sizes", i), absl::StrCat("must be at most train.micro_batch_size, ", micro,
                                                                  ", or a multiple of it, is ", bench.batch_sizes(i)));
  }
}

void CheckBare(const v1::JobSpec& spec, Violations* violations) {
  const char kNotWithSweep[] = "is not given with bench.sweep, which measures single operations";
  if (spec.has_model()) violations->Add("model", kNotWithSweep);
  if (spec.has_data()) violations->Add("data", kNotWithSweep);
  if (!spec.phases().empty()) violations->Add("phases", kNotWithSweep);
  if (!spec.precision().rules().empty()) violations->Add("precision.rules", kNotWithSweep);
  if (!spec.bench().batch_sizes().empty()) violations->Add("bench.batch_sizes", kNotWithSweep);
}

}  // namespace

void ResolveBench(v1::JobSpec* spec, Violations* violations) {
  v1::BenchSpec* bench = spec->mutable_bench();
  CheckModes("bench.modes", bench->modes(), violations);
  if (!bench->has_steps()) bench->set_steps(30);
  if (!bench->has_warmup_steps()) bench->set_warmup_steps(5);
  violations->CheckInteger("bench.steps", bench->steps(), 1, kMaxSteps);
  violations->CheckInteger("bench.warmup_steps", bench->warmup_steps(), 0, kMaxSteps);
  if (bench->has_sweep()) {
    ResolveSweep(bench->mutable_sweep(), violations);
    return CheckBare(*spec, violations);
  }
  if (bench->batch_sizes().empty()) bench->add_batch_sizes(spec->train().batch_size());
  CheckBatches(*spec, violations);
}

void ResolveAuto(v1::JobSpec* spec, Violations* violations) {
  PrecisionSpec* precision = spec->mutable_precision();
  if (!precision->has_auto_() && precision->mode() != PrecisionSpec::AUTO) return;
  v1::AutoSpec* choice = precision->mutable_auto_();
  CheckModes("precision.auto.modes", choice->modes(), violations);
  if (!choice->has_steps()) choice->set_steps(60);
  if (!choice->has_tolerance()) choice->set_tolerance(0.02);
  violations->CheckInteger("precision.auto.steps", choice->steps(), 10, kMaxSteps);
  violations->CheckReal("precision.auto.tolerance", choice->tolerance(), {.low = 0, .high = 1, .low_open = true});
  if (precision->mode() != PrecisionSpec::AUTO || spec->has_bench()) return;
  if (spec->model().networks_size() > 0) {
    violations->Add(
        "precision.mode",
        "AUTO is not for jobs with model.networks: how their losses compare says nothing of what they learn");
  }
}

}  // namespace ampd
