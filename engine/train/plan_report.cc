#include "engine/train/plan_report.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backend/cpu/kernel_memory.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/data/length_buckets.h"
#include "engine/models/imported_notes.h"
#include "engine/train/gradient_diagnostics.h"
#include "engine/train/plan_advice.h"
#include "engine/train/sizing_backend.h"
#include "engine/train/spec_configs.h"
#include "proto/spec/device_memory.h"
#include "proto/spec/device_models.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

constexpr PrecisionSpec::Mode kAllModes[] = {PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::FP16,
                                             PrecisionSpec::BF16, PrecisionSpec::FP8};
// No batch that a plan is tried with is larger.
constexpr int64_t kLargestBatch = int64_t{1} << 20;
constexpr int kTries = 10;
constexpr int kTriesByLibrary = 4;
// Of a training step. Plans of more take long enough without a library's.
constexpr size_t kMostStepsToAsk = 1500;

absl::StatusOr<ResolvedJobSpec> InMode(const ResolvedJobSpec& spec, PrecisionSpec::Mode mode) {
  if (spec.proto().precision().mode() == mode) return spec;
  return WithMode(spec, mode);
}

// Looks for the largest batch that fits. Memory is nearly linear in the batch: two plans tell where to look.
class BatchSearch {
 public:
  explicit BatchSearch(int64_t room_bytes) : limit_(static_cast<double>(room_bytes)) {}

  // `batch` lies between those that fit and those that do not. `bytes`: what it takes; infinite where it cannot be
  // planned.
  void Note(int64_t batch, double bytes) {
    const int64_t before = width();
    if (bytes > limit_) {
      too_large_ = {batch, bytes};
    } else {
      if (fits_.batch > 0) slope_ = (bytes - fits_.bytes) / static_cast<double>(batch - fits_.batch);
      fits_ = {batch, bytes};
    }
    slow_ = 2 * width() > before ? slow_ + 1 : 0;
  }

  bool done() const { return width() <= 1; }
  int64_t fits() const { return fits_.batch; }

  // What to try next, unless done.
  int64_t Next() const {
    // The least there is to find, and far enough from what was too much to tell the slope.
    if (fits_.batch == 0) return 1;
    const double next = bounded() ? Between() : Beyond();
    // A batch above a guess that came true settles it.
    return std::clamp(static_cast<int64_t>(next), fits_.batch + 1, too_large_.batch - 1);
  }

 private:
  struct Point {
    int64_t batch;
    double bytes;
  };

  int64_t width() const { return too_large_.batch - fits_.batch; }
  bool bounded() const { return too_large_.batch != kLargestBatch + 1; }

  double Between() const {
    const auto fits = static_cast<double>(fits_.batch);
    // Where memory is far from linear, halves get there.
    if (slow_ > 1 || !std::isfinite(too_large_.bytes)) return fits + static_cast<double>(width() / 2);
    return fits + (limit_ - fits_.bytes) / (too_large_.bytes - fits_.bytes) * static_cast<double>(width());
  }

  double Beyond() const {
    const auto fits = static_cast<double>(fits_.batch);
    if (!(slope_ > 0)) return 2 * fits;
    return std::min(fits + (limit_ - fits_.bytes) / slope_, static_cast<double>(kLargestBatch));
  }

  const double limit_;
  Point fits_ = {0, 0}, too_large_ = {kLargestBatch + 1, INFINITY};
  // Bytes of a sample more, by the last two that fit; 0: not known.
  double slope_ = 0;
  // Tries in a row that left more than half of what was to be searched.
  int slow_ = 0;
};

double BytesOf(const absl::StatusOr<DevicePlan>& plan) {
  return plan.ok() ? static_cast<double>(TotalBytes(*plan)) : INFINITY;
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
           const std::vector<PrecisionSpec::Mode>& modes, int64_t samples, absl::Span<const int32_t> lengths)
      : spec_(spec), planner_(sample, &model, samples, lengths), modes_(modes) {}

  absl::StatusOr<v1::PlanReport> Run() {
    AddModes();
    // All modes are planned alike, or they could not be compared.
    if (asks_ && !not_asked_.ok()) {
      asks_ = false;
      AddModes();
    }
    const PrecisionSpec::Mode own_mode = OwnMode();
    AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec own, InMode(spec_, own_mode));
    DevicePlan plan = std::move(kept_);
    // The device cannot do the job's own mode, and the layers are told all the same.
    if (plan.model == nullptr || kept_mode_ != own_mode) {
      AMPD_ASSIGN_OR_RETURN(plan, Plan(own));
    }
    if (planner_.model().kind() == v1::Device::CUDA) {
      report_.set_library(not_asked_.ok() ? CudaPlanLibrary() : "");
      report_.set_library_not_asked(std::string(not_asked_.message()));
    }
    const StepCosts costs = planner_.Costs(own, plan);
    report_.mutable_layers()->Assign(costs.layers.begin(), costs.layers.end());
    report_.set_step_flops(costs.flops);
    report_.set_step_bytes(costs.bytes);
    if (spec_.proto().model().has_onnx()) {
      for (std::string& note : models::DescribeGuesses(spec_.proto().model())) {
        report_.add_advice()->set_text(std::move(note));
      }
    }
    NoteEmulated();
    NoteRefused(own.proto().precision());
    for (v1::Advice& advice : AdviceFor(planner_, own, plan, costs, report_)) {
      report_.add_advice()->Swap(&advice);
    }
    return std::move(report_);
  }

 private:
  void AddModes() {
    report_.clear_modes();
    kept_ = DevicePlan();
    for (const PrecisionSpec::Mode mode : kAllModes) AddMode(mode);
  }

  // Notes why the library could not be asked, where that is no fault of the job's.
  absl::StatusOr<DevicePlan> Plan(const ResolvedJobSpec& spec) {
    const bool asks = asks_ && not_asked_.ok() && planner_.model().kind() == v1::Device::CUDA;
    absl::StatusOr<DevicePlan> planned = planner_.Plan(spec);
    if (!asks || !planned.ok()) return planned;
    size_t steps = 0;
    for (const PlannedPhase& phase : planned->model->phases) steps += phase.plans.back().steps.size();
    if (steps > kMostStepsToAsk) {
      not_asked_ = absl::ResourceExhaustedError(
          absl::StrCat("the plan has ", steps, " steps, more than the ", kMostStepsToAsk, " with which it is asked"));
      return planned;
    }
    absl::StatusOr<DevicePlan> by_library = planner_.PlanByLibrary(spec);
    if (by_library.ok()) return by_library;
    not_asked_ = by_library.status();
    return planned;
  }

  void NoteEmulated() {
    const v1::DeviceModel& model = planner_.model();
    std::vector<std::string> names;
    for (const v1::ModeEstimate& mode : report_.modes()) {
      if (mode.supported() && IsEmulated(model, mode.mode())) names.push_back(PrecisionSpec::Mode_Name(mode.mode()));
    }
    // Of a device whose speed is not known no mode has a floor.
    if (names.empty() || !(model.fp32_flops() > 0) || !(model.memory_bandwidth() > 0)) return;
    const bool one = names.size() == 1;
    report_.add_advice()->set_text(
        absl::StrCat(absl::StrJoin(names, ", "), ": no peak of ", model.name(), "'s is known, so ",
                     one ? "it is" : "they are", " taken to be emulated, which can be slower than FP32, and ",
                     one ? "has" : "have", " no floor; `ampctl bench` measures ", one ? "it" : "them"));
  }

  // Of the job's mode and its rules; why the device cannot do the other modes their estimates tell.
  void NoteRefused(const PrecisionSpec& own) {
    const v1::DeviceModel& model = planner_.model();
    const auto note = [&](PrecisionSpec::Mode mode, const std::string& field) {
      const std::string why = ModeRefusal(model, mode);
      if (why.empty()) return false;
      report_.add_advice()->set_text(absl::StrCat(model.name(), " cannot do ", PrecisionSpec::Mode_Name(mode), " (",
                                                  field, "), so the layers have no floors: ", why));
      return true;
    };
    if (note(own.mode(), "precision.mode")) return;
    for (int i = 0; i < own.rules_size(); ++i) {
      if (note(own.rules(i).dtype(), absl::StrCat("precision.rules[", i, "].dtype"))) return;
    }
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
    AMPD_ASSIGN_OR_RETURN(DevicePlan plan, Plan(spec));
    FillMemory(plan, estimate);
    FillLargestBatch(LargestBatchOf(spec, TotalBytes(plan)), estimate);
    const StepCosts costs = planner_.Costs(spec, plan);
    if (mode == PrecisionSpec::FP32) base_ = costs;
    if (costs.seconds > 0) FillSpeed(costs, estimate);
    // As OwnMode() chooses.
    const bool is_auto = spec_.proto().precision().mode() == PrecisionSpec::AUTO;
    if (is_auto ? kept_.model == nullptr || estimate->speed_up() > fastest_
                : mode == spec_.proto().precision().mode()) {
      kept_ = std::move(plan);
      kept_mode_ = mode;
      fastest_ = estimate->speed_up();
    }
    return absl::OkStatus();
  }

  // A larger batch than the training set holds would be refused.
  void FillLargestBatch(int64_t fits, v1::ModeEstimate* estimate) const {
    const int64_t gpus = spec_.proto().resources().gpus();
    const bool fills = planner_.CanFill(fits * gpus);
    estimate->set_largest_batch(fills ? fits : planner_.samples() / gpus);
    estimate->set_largest_batch_is_all_samples(!fills);
  }

  // `bytes`: what the job takes with its own batch. The library is asked about other batches only where it was found to
  // want more than the sizing backend expects, or where by the latter none would fit.
  int64_t LargestBatchOf(const ResolvedJobSpec& spec, int64_t bytes) const {
    const int64_t own = spec.proto().train().micro_batch_size();
    int64_t largest = LargestBatch(planner_, spec);
    const bool known = planner_.model().memory_bytes() > 0;
    if (!asks_ || !not_asked_.ok() || planner_.model().kind() != v1::Device::CUDA || !known) return largest;
    const int64_t room = planner_.room_bytes();
    if (bytes <= room) largest = std::max(largest, own);
    if (largest > 0 && static_cast<double>(bytes) <= BytesOf(planner_.Plan(spec))) return largest;
    BatchSearch search(room);
    search.Note(own, static_cast<double>(bytes));
    for (int i = 0; i < kTriesByLibrary && !search.done(); ++i) {
      const int64_t batch = i == 0 && largest > own && search.fits() > 0 ? largest : search.Next();
      const auto changed = WithBatch(spec, batch);
      search.Note(batch, changed.ok() ? BytesOf(planner_.PlanByLibrary(*changed)) : INFINITY);
    }
    return search.fits();
  }

  void FillSpeed(const StepCosts& costs, v1::ModeEstimate* estimate) const {
    estimate->set_step_seconds(costs.seconds);
    estimate->set_speed_up(base_.seconds / costs.seconds);
    const Accelerated part = AcceleratedOf(base_, costs);
    estimate->set_accelerated_share(base_.seconds > 0 ? part.before / base_.seconds : 0);
    estimate->set_accelerated_by(part.after > 0 ? part.before / part.after : 1);
    const double samples = static_cast<double>(spec_.proto().train().batch_size());
    const double price = planner_.model().usd_per_hour() * spec_.proto().resources().gpus();
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
  DevicePlan kept_;
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
int64_t LoaderBytesOf(const PlannedModel& planned) {
  return planned.backend->memory()->on_host() ? planned.loader_bytes : 0;
}

int64_t ArenaBytes(const PlannedModel& planned) { return std::max(planned.activation_bytes(), TensorBytes(planned)); }

int64_t ModelBytes(const PlannedModel& planned) {
  return planned.parameter_bytes() + ArenaBytes(planned) + planned.input_bytes();
}

void AddMemory(const PlannedModel& planned, v1::ModeEstimate* estimate) {
  const runtime::ModelLayout& layout = planned.layout;
  const int64_t arena = layout.arena_elements() * SizeOf(DType::kF32);
  const int64_t moments = planned.moments + (planned.keeps_average ? 1 : 0), tensors = TensorBytes(planned);
  estimate->set_weight_bytes(estimate->weight_bytes() + arena + layout.published_bytes() + 2 * layout.state_bytes());
  estimate->set_gradient_bytes(estimate->gradient_bytes() + arena);
  estimate->set_optimizer_bytes(estimate->optimizer_bytes() + moments * arena);
  estimate->set_activation_bytes(estimate->activation_bytes() + tensors + planned.input_bytes());
  estimate->set_workspace_bytes(estimate->workspace_bytes() + ArenaBytes(planned) - tensors +
                                layout.publish_workspace_bytes());
}

template <typename MakeBackend>
absl::StatusOr<DevicePlan> PlanOn(const ResolvedJobSpec& spec, const models::SampleInfo& sample, MakeBackend make) {
  DevicePlan plan;
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, make());
  AMPD_ASSIGN_OR_RETURN(
      plan.model, PlanModel(spec, sample, std::move(backend), 1, Fusion::kAll, {}, spec.proto().resources().gpus()));
  if (spec.proto().report().diagnostics_every_steps() == 0) return plan;
  AMPD_ASSIGN_OR_RETURN(backend, make());
  AMPD_ASSIGN_OR_RETURN(plan.diagnostics, GradientDiagnostics::Plan(spec, sample, std::move(backend), 1));
  return plan;
}

}  // namespace

absl::StatusOr<DevicePlan> DevicePlanner::Plan(const ResolvedJobSpec& spec) const {
  if (model_->kind() == v1::Device::CUDA) {
    return PlanOn(spec, sample_,
                  [this]() -> absl::StatusOr<std::unique_ptr<runtime::Backend>> { return MakeSizingBackend(*model_); });
  }
  absl::StatusOr<DevicePlan> plan;
  const int64_t kept = BytesKeptBy([&] { plan = PlanOn(spec, sample_, [] { return MakeBackend("cpu-0", 1); }); });
  if (plan.ok()) plan->kernel_bytes = kept;
  return plan;
}

absl::StatusOr<DevicePlan> DevicePlanner::PlanByLibrary(const ResolvedJobSpec& spec) const {
  return PlanOn(spec, sample_, [this] {
    return MakeCudaPlanner({.name = model_->name(),
                            .compute_capability_major = model_->compute_capability_major(),
                            .compute_capability_minor = model_->compute_capability_minor(),
                            .multiprocessors = model_->multiprocessors(),
                            .l2_bytes = model_->l2_bytes(),
                            .memory_bytes = model_->memory_bytes()});
  });
}

int64_t DevicePlanner::room_bytes() const {
  const int64_t left = model_->kind() == v1::Device::CUDA ? kProcessBytes : 0;
  return std::max<int64_t>(0, model_->memory_bytes() - left);
}

StepCosts DevicePlanner::Costs(const ResolvedJobSpec& spec, const DevicePlan& plan) const {
  return CostsOf(spec, *plan.model, *model_, BucketShares(spec));
}

std::vector<double> DevicePlanner::BucketShares(const ResolvedJobSpec& spec) const {
  std::vector<double> shares;
  if (sample_.buckets.size() < 2 || lengths_.empty()) return shares;
  const v1::JobSpec& job = spec.proto();
  const std::vector<data::BucketBatch> batches = data::EpochBatches(lengths_, sample_.buckets, job.train().batch_size(),
                                                                    job.data().shuffle(), job.seed(), /*epoch=*/0);
  // The set does not fill one.
  if (batches.empty()) return shares;
  shares.resize(sample_.buckets.size());
  for (const data::BucketBatch& batch : batches) shares[batch.bucket] += 1;
  for (double& share : shares) share /= static_cast<double>(batches.size());
  return shares;
}

void FillMemory(const DevicePlan& plan, v1::ModeEstimate* estimate) {
  estimate->clear_weight_bytes();
  estimate->clear_gradient_bytes();
  estimate->clear_optimizer_bytes();
  estimate->set_activation_bytes(LoaderBytesOf(*plan.model));
  estimate->clear_workspace_bytes();
  AddMemory(*plan.model, estimate);
  if (plan.diagnostics != nullptr) AddMemory(*plan.diagnostics, estimate);
  estimate->set_workspace_bytes(estimate->workspace_bytes() + plan.kernel_bytes);
  estimate->set_total_bytes(TotalBytes(plan));
}

int64_t TotalBytes(const DevicePlan& plan) {
  const int64_t beside = plan.diagnostics == nullptr ? 0 : ModelBytes(*plan.diagnostics);
  return ModelBytes(*plan.model) + LoaderBytesOf(*plan.model) + beside + plan.kernel_bytes;
}

absl::StatusOr<ResolvedJobSpec> WithBatch(const ResolvedJobSpec& spec, int64_t batch) {
  v1::JobSpec changed = spec.proto();
  changed.mutable_train()->set_batch_size(batch * spec.proto().resources().gpus());
  changed.mutable_train()->set_micro_batch_size(batch);
  return ResolveJobSpec(std::move(changed));
}

int64_t LargestBatch(const DevicePlanner& planner, const ResolvedJobSpec& spec) {
  if (planner.model().memory_bytes() <= 0) return 0;
  BatchSearch search(planner.room_bytes());
  int64_t batch = spec.proto().train().micro_batch_size();
  for (int i = 0; i < kTries && !search.done(); ++i) {
    const auto changed = WithBatch(spec, batch);
    search.Note(batch, changed.ok() ? BytesOf(planner.Plan(*changed)) : INFINITY);
    if (!search.done()) batch = search.Next();
  }
  return search.fits();
}

absl::StatusOr<v1::PlanReport> MakePlanReport(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                              const v1::DeviceModel& model,
                                              const std::vector<PrecisionSpec::Mode>& modes, int64_t samples,
                                              absl::Span<const int32_t> lengths) {
  return Reporter(spec, sample, model, modes, samples, lengths).Run();
}

}  // namespace ampd::train
