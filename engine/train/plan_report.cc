#include "engine/train/plan_report.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/train/plan_advice.h"
#include "engine/train/sizing_backend.h"
#include "engine/train/spec_configs.h"
#include "proto/spec/device_models.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

constexpr PrecisionSpec::Mode kAllModes[] = {PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::FP16,
                                             PrecisionSpec::BF16, PrecisionSpec::FP8};
// No batch that a plan is tried with is larger.
constexpr int64_t kLargestBatch = int64_t{1} << 20;
constexpr int kTries = 8;
constexpr int kTriesByLibrary = 4;
// Of a training step. Plans of more take long enough without a library's.
constexpr size_t kMostStepsToAsk = 1500;

absl::StatusOr<ResolvedJobSpec> InMode(const ResolvedJobSpec& spec, PrecisionSpec::Mode mode) {
  if (spec.proto().precision().mode() == mode) return spec;
  return WithMode(spec, mode);
}

// FP32's floors of the products that are faster in `mode`, and what they are there.
struct Accelerated {
  double before = 0;
  double after = 0;
};

Accelerated AcceleratedOf(const StepCosts& base, const StepCosts& costs) {
  Accelerated sum;
  for (const auto& [name, seconds] : base.products) {
    const auto same = costs.products.find(name);
    if (same == costs.products.end() || same->second >= seconds) continue;
    sum.before += seconds;
    sum.after += same->second;
  }
  return sum;
}

class Reporter {
 public:
  Reporter(const ResolvedJobSpec& spec, const models::SampleInfo& sample, const v1::DeviceModel& model,
           const std::vector<PrecisionSpec::Mode>& modes)
      : spec_(spec), planner_(sample, &model), modes_(modes) {}

  absl::StatusOr<v1::PlanReport> Run() {
    AddModes();
    // All modes are planned alike, or they could not be compared.
    if (asks_ && !not_asked_.ok()) {
      asks_ = false;
      AddModes();
    }
    const PrecisionSpec::Mode own_mode = OwnMode();
    AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec own, InMode(spec_, own_mode));
    std::unique_ptr<PlannedModel> planned = std::move(kept_);
    // The device cannot do the job's own mode, and the layers are told all the same.
    if (planned == nullptr || kept_mode_ != own_mode) {
      AMPD_ASSIGN_OR_RETURN(planned, Plan(own));
    }
    if (planner_.model().kind() == v1::Device::CUDA) {
      report_.set_library(not_asked_.ok() ? CudaPlanLibrary() : "");
      report_.set_library_not_asked(std::string(not_asked_.message()));
    }
    const StepCosts costs = planner_.Costs(own, *planned);
    report_.mutable_layers()->Assign(costs.layers.begin(), costs.layers.end());
    report_.set_step_flops(costs.flops);
    report_.set_step_bytes(costs.bytes);
    for (v1::Advice& advice : AdviceFor(planner_, own, *planned, costs, report_.modes())) {
      report_.add_advice()->Swap(&advice);
    }
    return std::move(report_);
  }

 private:
  void AddModes() {
    report_.clear_modes();
    kept_ = nullptr;
    for (const PrecisionSpec::Mode mode : kAllModes) AddMode(mode);
  }

  // Notes why the library could not be asked, where that is no fault of the job's.
  absl::StatusOr<std::unique_ptr<PlannedModel>> Plan(const ResolvedJobSpec& spec) {
    const bool asks = asks_ && not_asked_.ok() && planner_.model().kind() == v1::Device::CUDA;
    absl::StatusOr<std::unique_ptr<PlannedModel>> planned = planner_.Plan(spec);
    if (!asks || !planned.ok()) return planned;
    size_t steps = 0;
    for (const PlannedPhase& phase : (*planned)->phases) steps += phase.plans.back().steps.size();
    if (steps > kMostStepsToAsk) {
      not_asked_ = absl::ResourceExhaustedError(
          absl::StrCat("the plan has ", steps, " steps, more than the ", kMostStepsToAsk, " with which it is asked"));
      return planned;
    }
    absl::StatusOr<std::unique_ptr<PlannedModel>> by_library = planner_.PlanByLibrary(spec);
    if (by_library.ok()) return by_library;
    not_asked_ = by_library.status();
    return planned;
  }

  bool IsAskedFor(PrecisionSpec::Mode mode) const {
    return mode == PrecisionSpec::FP32 || modes_.empty() || mode == spec_.proto().precision().mode() ||
           std::find(modes_.begin(), modes_.end(), mode) != modes_.end();
  }

  void AddMode(PrecisionSpec::Mode mode) {
    if (!IsAskedFor(mode)) return;
    v1::ModeEstimate* estimate = report_.add_modes();
    estimate->set_mode(mode);
    estimate->set_reason(ModeRefusal(planner_.model(), mode));
    if (!estimate->reason().empty()) return;
    const absl::Status status = Estimate(mode, estimate);
    estimate->set_supported(status.ok());
    estimate->set_reason(std::string(status.message()));
  }

  absl::Status Estimate(PrecisionSpec::Mode mode, v1::ModeEstimate* estimate) {
    AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, InMode(spec_, mode));
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<PlannedModel> planned, Plan(spec));
    FillMemory(*planned, estimate);
    estimate->set_largest_batch(LargestBatchOf(spec, TotalBytes(*planned)));
    const StepCosts costs = planner_.Costs(spec, *planned);
    if (mode == PrecisionSpec::FP32) base_ = costs;
    if (costs.seconds > 0) FillSpeed(costs, estimate);
    // As OwnMode() chooses.
    const bool is_auto = spec_.proto().precision().mode() == PrecisionSpec::AUTO;
    if (is_auto ? kept_ == nullptr || estimate->speed_up() > fastest_ : mode == spec_.proto().precision().mode()) {
      kept_ = std::move(planned);
      kept_mode_ = mode;
      fastest_ = estimate->speed_up();
    }
    return absl::OkStatus();
  }

  // `bytes`: what the job takes with its own batch. The library is asked about other batches only where it was found to
  // want more than the sizing backend expects.
  int64_t LargestBatchOf(const ResolvedJobSpec& spec, int64_t bytes) const {
    const int64_t has = planner_.model().memory_bytes(), own = spec.proto().train().micro_batch_size();
    int64_t largest = LargestBatch(planner_, spec);
    if (!asks_ || !not_asked_.ok() || planner_.model().kind() != v1::Device::CUDA || has == 0) return largest;
    if (bytes <= has) largest = std::max(largest, own);
    const auto expected = planner_.Plan(spec);
    if (!expected.ok() || bytes <= TotalBytes(**expected)) return largest;
    for (int i = 0; i < kTriesByLibrary && largest > 0; ++i) {
      const auto batch = WithBatch(spec, largest);
      if (!batch.ok()) break;
      const auto planned = planner_.PlanByLibrary(*batch);
      if (!planned.ok()) break;
      const int64_t needs = TotalBytes(**planned);
      if (needs <= has) return largest;
      const double share = static_cast<double>(has) / static_cast<double>(needs);
      largest = std::min(largest - 1, static_cast<int64_t>(static_cast<double>(largest) * share));
    }
    return bytes <= has ? own : 0;
  }

  void FillSpeed(const StepCosts& costs, v1::ModeEstimate* estimate) const {
    estimate->set_step_seconds(costs.seconds);
    estimate->set_speed_up(base_.seconds / costs.seconds);
    const Accelerated part = AcceleratedOf(base_, costs);
    estimate->set_accelerated_share(base_.seconds > 0 ? part.before / base_.seconds : 0);
    estimate->set_accelerated_by(part.after > 0 ? part.before / part.after : 1);
    const double samples = static_cast<double>(spec_.proto().train().batch_size());
    const double price = planner_.model().usd_per_hour();
    if (price > 0) estimate->set_usd_per_million_samples(price / 3600 * costs.seconds / samples * 1e6);
  }

  // What layers and advice are of.
  PrecisionSpec::Mode OwnMode() const {
    if (spec_.proto().precision().mode() != PrecisionSpec::AUTO) return spec_.proto().precision().mode();
    const v1::ModeEstimate* best = &report_.modes(0);
    for (const v1::ModeEstimate& mode : report_.modes()) {
      if (mode.supported() && mode.speed_up() > best->speed_up()) best = &mode;
    }
    return best->mode();
  }

  const ResolvedJobSpec& spec_;
  const DevicePlanner planner_;
  const std::vector<PrecisionSpec::Mode>& modes_;
  // Of the job's own mode, or the fastest so far.
  std::unique_ptr<PlannedModel> kept_;
  PrecisionSpec::Mode kept_mode_ = PrecisionSpec::FP32;
  double fastest_ = 0;
  // Whether the device's library is asked, and why it could not be.
  bool asks_ = true;
  absl::Status not_asked_;
  StepCosts base_;
  v1::PlanReport report_;
};

int64_t TensorBytes(const PlannedModel& planned) {
  int64_t bytes = std::max(planned.eval.activation_bytes, planned.sample.activation_bytes);
  for (const PlannedPhase& phase : planned.phases) {
    for (const runtime::Plan& plan : phase.plans) bytes = std::max(bytes, plan.activation_bytes);
  }
  return bytes;
}

// On the device: a loader's batches are the host's.
int64_t BatchBytes(const PlannedModel& planned) {
  return planned.backend->memory()->on_host() ? planned.loader_bytes : planned.input_bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannedModel>> DevicePlanner::Plan(const ResolvedJobSpec& spec) const {
  if (model_->kind() == v1::Device::CUDA) return PlanModel(spec, sample_, MakeSizingBackend(*model_), 1);
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, MakeBackend("cpu-0", 1));
  return PlanModel(spec, sample_, std::move(backend), 1);
}

absl::StatusOr<std::unique_ptr<PlannedModel>> DevicePlanner::PlanByLibrary(const ResolvedJobSpec& spec) const {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend,
                        MakeCudaPlanner({.name = model_->name(),
                                         .compute_capability_major = model_->compute_capability_major(),
                                         .compute_capability_minor = model_->compute_capability_minor(),
                                         .multiprocessors = model_->multiprocessors(),
                                         .l2_bytes = model_->l2_bytes(),
                                         .memory_bytes = model_->memory_bytes()}));
  return PlanModel(spec, sample_, std::move(backend), 1);
}

void FillMemory(const PlannedModel& planned, v1::ModeEstimate* estimate) {
  const runtime::ModelLayout& layout = planned.layout;
  const int64_t arena = layout.arena_elements() * SizeOf(DType::kF32);
  estimate->set_weight_bytes(arena + layout.published_bytes() + 2 * layout.state_bytes());
  estimate->set_gradient_bytes(arena);
  estimate->set_optimizer_bytes((planned.moments + (planned.keeps_average ? 1 : 0)) * arena);
  estimate->set_activation_bytes(TensorBytes(planned) + BatchBytes(planned));
  const int64_t workspace = std::max<int64_t>(0, planned.activation_bytes() - TensorBytes(planned));
  estimate->set_workspace_bytes(workspace + layout.publish_workspace_bytes());
  estimate->set_total_bytes(TotalBytes(planned));
}

int64_t TotalBytes(const PlannedModel& planned) {
  const int64_t arena = std::max(planned.activation_bytes(), TensorBytes(planned));
  return planned.parameter_bytes() + arena + BatchBytes(planned);
}

absl::StatusOr<ResolvedJobSpec> WithBatch(const ResolvedJobSpec& spec, int64_t batch) {
  v1::JobSpec changed = spec.proto();
  changed.mutable_train()->set_batch_size(batch);
  changed.mutable_train()->set_micro_batch_size(batch);
  return ResolveJobSpec(std::move(changed));
}

int64_t LargestBatch(const DevicePlanner& planner, const ResolvedJobSpec& spec) {
  const auto limit = static_cast<double>(planner.model().memory_bytes());
  if (!(limit > 0)) return 0;
  // Bytes at a batch; infinite where it cannot be planned.
  const auto bytes_at = [&](int64_t batch) -> double {
    const auto changed = WithBatch(spec, batch);
    if (!changed.ok()) return INFINITY;
    const auto planned = planner.Plan(*changed);
    return planned.ok() ? static_cast<double>(TotalBytes(**planned)) : INFINITY;
  };
  const int64_t own = spec.proto().train().micro_batch_size();
  int64_t fits = 0, too_large = kLargestBatch + 1, guess = own;
  double fitting_bytes = 0, slope = 0, last_bytes = 0;
  int64_t last = 0;
  for (int i = 0; i < kTries && too_large - fits > 1; ++i) {
    const double bytes = bytes_at(guess);
    if (last > 0 && std::isfinite(bytes) && std::isfinite(last_bytes) && guess != last) {
      slope = (bytes - last_bytes) / static_cast<double>(guess - last);
    }
    last = guess, last_bytes = bytes;
    if (bytes <= limit) {
      fits = guess, fitting_bytes = bytes;
    } else {
      too_large = guess;
    }
    double next = fits > 0 && slope > 0       ? static_cast<double>(fits) + (limit - fitting_bytes) / slope
                  : too_large > kLargestBatch ? 2.0 * static_cast<double>(guess)
                                              : static_cast<double>(fits + too_large) / 2;
    // Memory is nearly linear: a batch above a guess that came true settles it.
    next = std::clamp(std::floor(next), static_cast<double>(fits + 1), static_cast<double>(too_large - 1));
    guess = static_cast<int64_t>(next);
  }
  return fits;
}

absl::StatusOr<v1::PlanReport> MakePlanReport(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                              const v1::DeviceModel& model,
                                              const std::vector<PrecisionSpec::Mode>& modes) {
  return Reporter(spec, sample, model, modes).Run();
}

}  // namespace ampd::train
