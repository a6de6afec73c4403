#include "engine/backend/cuda/step_loop.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/fused_attention.h"
#include "engine/backend/cuda/graph_cache.h"
#include "engine/backend/cuda/handles.h"
#include "engine/backend/cuda/launch_choice.h"
#include "engine/backend/cuda/resident_dataset.h"
#include "engine/backend/cuda/resident_step.h"
#include "engine/backend/cuda/staged_copy.h"
#include "engine/backend/cuda/status.h"
#include "engine/backend/cuda/step_control.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::StepLoopPhase;
using runtime::StepRecord;

// Page-locked memory that batches are fed through, and as much on the device.
constexpr int64_t kFeedBytes = int64_t{256} << 20;
constexpr int64_t kMostSlots = 256;
// Phases, each of which leaves a record of a step: kMaxPhases of proto/spec/resolve_phases.cc.
constexpr int64_t kMostPhases = 16;
// Records and scalars of updates ahead; more than can be in flight.
constexpr int64_t kRecords = 8192;
constexpr int64_t kTable = 4096;
static_assert(kMostSlots * kMostPhases < kRecords && kMostSlots < kTable);
static_assert((kRecords & (kRecords - 1)) == 0 && (kTable & (kTable - 1)) == 0);
// Steps captured in one graph where many are launched at once, if they are of few nodes.
constexpr int64_t kUnrolled = 16;
constexpr int64_t kFewNodes = 256;
// Graphs that are ready may take this share of the memory that is left, or what resident samples leave for them; for a
// node they take about so much.
constexpr int64_t kGraphShare = 16;
constexpr int64_t kFewestGraphBytes = int64_t{256} << 20;
constexpr int64_t kNodeBytes = int64_t{8} << 10;

// By the inputs' names.
using FeedLayout = std::map<std::string, FeedPlace, std::less<>>;

int64_t InputBytes(const runtime::PlannedTensor& input) {
  return NumElements(input.type.shape) * SizeOf(input.type.dtype);
}

// Whether any step reads input `index`; what none reads is not fed.
bool Reads(const runtime::Plan& plan, size_t index) {
  const auto reads = [index](const runtime::PlannedTensor& tensor) {
    return tensor.space == runtime::Space::kInput && tensor.offset == static_cast<int64_t>(index);
  };
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const runtime::PlanStep& step) {
    return std::any_of(step.inputs.begin(), step.inputs.end(), reads);
  });
}

class CudaStepLoop : public runtime::StepLoop {
 public:
  CudaStepLoop(Context* context, const runtime::StepLoopConfig& config)
      : context_(context), config_(config), launched_by_phase_(config.phases.size(), 0) {}
  ~CudaStepLoop() override {
    // What is in flight uses what is about to be freed.
    context_->Wait().IgnoreError();
    if (copies_) static_cast<void>(cudaStreamSynchronize(copies_.get()));
  }

  absl::Status Open();

  runtime::StepLaunch launch() const override {
    using Launch = runtime::StepLaunch;
    if (resident_ == nullptr) return config_.launch;
    return resident_->takes_layers_together() ? Launch::kResident : Launch::kInterpreted;
  }
  absl::Status samples() const override { return samples_status_; }
  std::vector<std::string> notes() const override { return AttentionNotes(context_); }
  int64_t slots() const override { return ring_.slots; }
  absl::Status Start(uint64_t attempted_step, absl::Span<const optim::LossScalerState> scalers) override;
  absl::Status Feed(size_t bucket, absl::Span<const runtime::FedInput> inputs,
                    absl::Span<const runtime::MicroBatchWeight> weights) override;
  absl::Status FeedSamples(absl::Span<const int64_t> samples,
                           absl::Span<const runtime::MicroBatchWeight> weights) override;
  absl::Status Launch(size_t bucket, uint64_t phases, int64_t steps) override;
  absl::StatusOr<absl::optional<StepRecord>> Next() override;

 private:
  // A phase's passes, and copies of parameters that its update does not write.
  struct PhasePasses {
    std::unique_ptr<GradientCheckPass> check;
    std::unique_ptr<UpdatePass> update;
    std::vector<const runtime::ModelLayout::Copy*> copies;
  };
  // Launched at once, with the event behind them.
  struct Window {
    uint64_t end = 0;
    int32_t last_phase = 0;
    EventHandle done;
  };

  absl::Status LayOutFeed();
  absl::Status ListPieces(size_t bucket, absl::Span<const runtime::FedInput> inputs,
                          absl::Span<const runtime::MicroBatchWeight> weights);
  absl::Status AllocateFeed();
  absl::Status AllocateStaging();
  // UNIMPLEMENTED also where the loop has buckets, or inputs that are no samples'.
  absl::Status MakeDataset();
  absl::Status CheckFree() const;
  absl::Status MakePasses(const StepLoopPhase& phase);
  absl::Status MakeResident();
  absl::Status WarmUp();
  // Keeps to resident steps only where they are faster. The loop is halted.
  absl::Status ChooseLaunch();
  absl::Status HaltOnZeros();
  absl::Status FillTable(size_t phase, int64_t until);
  absl::Status Enqueue(size_t bucket, uint64_t phases, int64_t micro_batches);
  absl::Status EnqueuePhase(size_t phase, size_t bucket, int64_t micro_batches);
  absl::Status EnqueueMicroBatch(size_t phase, size_t bucket, int64_t index);
  absl::Status EnqueueUpdate(size_t phase);
  absl::StatusOr<CapturedGraph> Capture(const GraphCache::Key& key);
  absl::StatusOr<cudaGraphExec_t> Ready(const GraphCache::Key& key);
  // How many of the next `left` steps one launch takes.
  absl::StatusOr<int64_t> StepsOfLaunch(size_t bucket, uint64_t phases, int64_t left);
  absl::Status LaunchSome(size_t bucket, uint64_t phases, int64_t steps);
  absl::StatusOr<EventHandle> TakeEvent();

  DecisionConfig DecisionOf(size_t phase) const {
    return {.phase = static_cast<int32_t>(phase),
            .loss_scale = config_.phases[phase].loss_scale,
            .clip_norm = config_.phases[phase].clip_norm,
            .table = table(phase),
            .table_size = kTable};
  }
  // In a slot, of all phases and micro-batches.
  int64_t WeightBytes() const {
    return static_cast<int64_t>(config_.phases.size() * sizeof(runtime::MicroBatchWeight)) * config_.micro_batches;
  }
  PhaseControl* phase_control(size_t phase) const { return phase_controls_.as<PhaseControl>() + phase; }
  StepControl* control() const { return control_.as<StepControl>(); }
  optim::UpdateScalars* table(size_t phase) const {
    return tables_.as<optim::UpdateScalars>() + static_cast<int64_t>(phase) * kTable;
  }
  const cudaStream_t& stream() const { return stream_; }

  Context* const context_;
  runtime::StepLoopConfig config_;
  cudaStream_t stream_ = nullptr;

  StreamHandle copies_;
  std::vector<FeedLayout> feed_;  // by bucket
  FeedRing ring_;
  DeviceArray ring_memory_, control_, phase_controls_, tables_;
  // Tables are copied from table_staging_, which has the same entries.
  PinnedArray staging_, table_staging_, records_memory_;
  RecordRing records_;
  std::unique_ptr<StagedCopier> copier_;  // where staging_ is
  std::vector<StagedPiece> pieces_;       // of the batch that is fed
  std::vector<EventHandle> fed_events_;   // by slot
  std::vector<PhasePasses> passes_;
  GraphCache graphs_;
  std::map<std::pair<size_t, uint64_t>, int64_t> step_nodes_;  // by bucket and phases
  std::unique_ptr<ResidentStep> resident_;
  // Null: batches are fed whole, and this is why.
  std::unique_ptr<ResidentDataset> dataset_;
  absl::Status samples_status_;
  std::vector<EventHandle> free_events_;
  std::deque<Window> windows_;

  bool started_ = false;
  // An undecided step was met.
  bool stopped_ = false;
  // Steps: the first without its last record; fed; launched.
  uint64_t oldest_ = 0;
  uint64_t fed_end_ = 0;
  uint64_t launched_end_ = 0;
  uint64_t consumed_ = 0;  // records
  // By phase: applied steps when the loop was started, steps launched since that are not known to be skipped, and up to
  // where the table is filled.
  std::vector<int64_t> applied_at_start_;
  std::vector<int64_t> launched_by_phase_;
  std::vector<int64_t> table_end_;
};

absl::Status CudaStepLoop::Open() {
  stream_ = context_->stream();
  for (const StepLoopPhase& phase : config_.phases) {
    for (const runtime::Executor* executor : phase.executors) {
      if (config_.micro_batches == 1 || !executor->plan().overwrites_gradients) continue;
      return absl::InternalError(absl::StrCat("[cuda step loop] a plan that overwrites gradients, for ",
                                              config_.micro_batches, " micro-batches"));
    }
  }
  const auto phases = static_cast<int64_t>(config_.phases.size());
  if (phases > kMostPhases) {
    return absl::InternalError(absl::StrCat("[cuda step loop] ", phases, " phases, at most ", kMostPhases));
  }
  AMPD_ASSIGN_OR_RETURN(copies_, StreamHandle::Create());
  AMPD_RETURN_IF_ERROR(LayOutFeed());
  AMPD_RETURN_IF_ERROR(AllocateFeed());
  AMPD_ASSIGN_OR_RETURN(control_, DeviceArray::Allocate(sizeof(StepControl), "the step's control"));
  AMPD_ASSIGN_OR_RETURN(phase_controls_, DeviceArray::Allocate(phases * sizeof(PhaseControl), "the phases' control"));
  const int64_t table_bytes = phases * kTable * static_cast<int64_t>(sizeof(optim::UpdateScalars));
  AMPD_ASSIGN_OR_RETURN(tables_, DeviceArray::Allocate(table_bytes, "the tables of update scalars"));
  AMPD_ASSIGN_OR_RETURN(table_staging_, PinnedArray::Allocate(table_bytes, "the tables of update scalars"));
  AMPD_ASSIGN_OR_RETURN(records_memory_,
                        PinnedArray::Allocate(kRecords * sizeof(StepRecord) + sizeof(uint64_t), "step records"));
  records_.records = records_memory_.as<StepRecord>();
  records_.count = reinterpret_cast<uint64_t*>(records_.records + kRecords);
  records_.size = kRecords;
  *records_.count = 0;
  for (const StepLoopPhase& phase : config_.phases) AMPD_RETURN_IF_ERROR(MakePasses(phase));
  const bool may_choose = config_.launch == runtime::StepLaunch::kFastest;
  AMPD_RETURN_IF_ERROR(MakeResident());
  AMPD_RETURN_IF_ERROR(WarmUp());
  if (may_choose && resident_ != nullptr) AMPD_RETURN_IF_ERROR(ChooseLaunch());
  // Last: samples take of what is left, and graphs of that.
  AMPD_RETURN_IF_ERROR(AllocateStaging());
  const int64_t left = config_.memory->memory()->free_bytes();
  graphs_ = GraphCache(std::max(kFewestGraphBytes, left / kGraphShare) / kNodeBytes);
  return absl::OkStatus();
}

// Every input of any phase, for each bucket; behind the weights.
absl::Status CudaStepLoop::LayOutFeed() {
  feed_.resize(config_.phases.front().executors.size());
  for (size_t b = 0; b < feed_.size(); ++b) {
    int64_t end = AlignUp(WeightBytes());
    for (const StepLoopPhase& phase : config_.phases) {
      const runtime::Plan& plan = phase.executors[b]->plan();
      for (size_t i = 0; i < plan.inputs.size(); ++i) {
        if (!Reads(plan, i)) continue;
        const runtime::PlannedTensor& input = plan.inputs[i];
        const int64_t bytes = InputBytes(input), stride = AlignUp(bytes);
        const auto [it, inserted] = feed_[b].insert({input.name, {end, bytes, stride}});
        if (!inserted && it->second.bytes != bytes) {
          return absl::InternalError(absl::StrCat("[cuda step loop] input ", input.name, " has ", bytes,
                                                  " bytes in one phase and ", it->second.bytes, " in another"));
        }
        if (inserted) end += stride * config_.micro_batches;
      }
    }
    ring_.bytes_per_slot = std::max(ring_.bytes_per_slot, end);
  }
  ring_.slots = std::clamp<int64_t>(kFeedBytes / ring_.bytes_per_slot, 2, kMostSlots);
  return absl::OkStatus();
}

absl::Status CudaStepLoop::AllocateFeed() {
  AMPD_ASSIGN_OR_RETURN(ring_memory_, DeviceArray::Allocate(ring_.slots * ring_.bytes_per_slot, "batches"));
  ring_.data = ring_memory_.as<char>();
  for (int64_t i = 0; i < ring_.slots; ++i) {
    AMPD_ASSIGN_OR_RETURN(EventHandle event, EventHandle::Create());
    fed_events_.push_back(std::move(event));
  }
  return absl::OkStatus();
}

absl::Status CudaStepLoop::AllocateStaging() {
  samples_status_ = MakeDataset();
  if (samples_status_.ok()) return absl::OkStatus();
  // Whoever feeds batches finds, and says, what a sample has that cannot be read.
  const bool fed = absl::IsUnimplemented(samples_status_) || absl::IsResourceExhausted(samples_status_) ||
                   absl::IsDataLoss(samples_status_);
  if (!fed) return Annotate(samples_status_, "training samples");
  AMPD_ASSIGN_OR_RETURN(staging_, PinnedArray::Allocate(ring_.slots * ring_.bytes_per_slot, "batches"));
  copier_ = std::make_unique<StagedCopier>(ring_.bytes_per_slot);
  return absl::OkStatus();
}

absl::Status CudaStepLoop::MakeDataset() {
  if (config_.samples == nullptr) return absl::UnimplementedError("none are to be kept on the device");
  if (feed_.size() != 1) return absl::UnimplementedError("batches are of several lengths");
  const runtime::StoredSamples& samples = *config_.samples;
  SlotLayout layout = {.ring = ring_memory_.as<char>(),
                       .slots = ring_.slots,
                       .bytes_per_slot = ring_.bytes_per_slot,
                       .weight_bytes = WeightBytes(),
                       .micro_batches = config_.micro_batches,
                       .micro_batch_size = config_.micro_batch_size};
  for (const auto& [name, place] : feed_.front()) {
    if (name != samples.input && name != samples.target) {
      return absl::UnimplementedError(absl::StrCat("input ", name, " is made by the host"));
    }
    (name == samples.input ? layout.input : layout.target) = place;
  }
  AMPD_ASSIGN_OR_RETURN(dataset_, ResidentDataset::Create(context_, config_.memory->memory(), samples, layout));
  return absl::OkStatus();
}

absl::Status CudaStepLoop::MakePasses(const StepLoopPhase& phase) {
  runtime::ModelMemory* memory = config_.memory;
  const runtime::ModelLayout& layout = memory->layout();
  std::vector<StateSlot> states;
  for (size_t i = 0; i < layout.states().size(); ++i) {
    // A state of another dtype has no place in the list but keeps its index.
    const ir::TensorType& type = layout.states()[i].type;
    const auto* data = reinterpret_cast<const float*>(memory->pending_state() + layout.state_offsets()[i]);
    states.push_back({data, type.dtype == DType::kF32 ? NumElements(type.shape) : 0});
  }
  PhasePasses passes;
  AMPD_ASSIGN_OR_RETURN(passes.check, GradientCheckPass::Create(context_, memory->gradients(), phase.slots, states));
  std::vector<DenseCopy> dense;
  for (const runtime::ModelLayout::Copy& copy : layout.copies()) {
    const runtime::ArenaSlot& slot = layout.slots()[copy.parameter];
    const bool updated = std::any_of(phase.update.ranges.begin(), phase.update.ranges.end(), [&](const auto& range) {
      return slot.offset >= range.slot.offset && slot.offset + slot.size <= range.slot.offset + range.slot.size;
    });
    if (!updated) continue;
    // Of a parameter that is read in several ways the pass writes one copy.
    const bool taken = std::any_of(dense.begin(), dense.end(),
                                   [&](const DenseCopy& other) { return other.slot.offset == slot.offset; });
    const absl::optional<DenseCopy> written = AsDenseCopy(layout, copy, memory->published());
    if (written && !taken) {
      dense.push_back(*written);
    } else {
      passes.copies.push_back(&copy);
    }
  }
  AMPD_ASSIGN_OR_RETURN(passes.update, UpdatePass::Create(context_, phase.update, dense));
  passes_.push_back(std::move(passes));
  return absl::OkStatus();
}

absl::Status CudaStepLoop::MakeResident() {
  using Launch = runtime::StepLaunch;
  const Launch asked = std::exchange(config_.launch, Launch::kCaptured);
  if (asked != Launch::kResident && asked != Launch::kInterpreted && asked != Launch::kFastest) {
    config_.launch = asked;
    return absl::OkStatus();
  }
  const ResidentLoop loop = {.control = control(),
                             .phase = phase_control(0),
                             .ring = ring_,
                             .decision = DecisionOf(0),
                             .records = records_,
                             .interpret_all = asked == Launch::kInterpreted,
                             .input_offset = [this](absl::string_view name) -> absl::optional<int64_t> {
                               const auto place = feed_.front().find(name);
                               if (place == feed_.front().end()) return absl::nullopt;
                               return place->second.offset;
                             }};
  absl::StatusOr<std::unique_ptr<ResidentStep>> step = ResidentStep::Create(context_, config_, loop);
  if (absl::IsUnimplemented(step.status())) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(step.status());
  resident_ = *std::move(step);
  return absl::OkStatus();
}

// Every kernel of a step runs here once, so that none is loaded, and none chooses its algorithm, within a capture.
// Further micro-batches have no others.
absl::Status CudaStepLoop::WarmUp() {
  AMPD_RETURN_IF_ERROR(HaltOnZeros());
  const uint64_t all = (uint64_t{2} << (config_.phases.size() - 1)) - 1;
  for (size_t b = 0; b < feed_.size(); ++b) {
    AMPD_RETURN_IF_ERROR(Annotate(Enqueue(b, all, 1), "warming up"));
    AMPD_RETURN_IF_ERROR(Annotate(context_->Wait(), "warming up"));
  }
  return absl::OkStatus();
}

absl::Status CudaStepLoop::ChooseLaunch() {
  GraphHandle graph;
  const auto launch_captured = [&]() -> absl::Status {
    if (graph.get() == nullptr) {
      AMPD_ASSIGN_OR_RETURN(const CapturedGraph captured, Capture({.bucket = 0, .phases = 1, .steps = kUnrolled}));
      AMPD_ASSIGN_OR_RETURN(graph, GraphHandle::Instantiate(captured));
    }
    return ToStatus(cudaGraphLaunch(graph.get(), stream()), "launching captured steps");
  };
  AMPD_ASSIGN_OR_RETURN(const bool resident_is_faster, IsResidentFaster(*context_, config_, launch_captured, [&] {
                          return resident_->EnqueueTrial(kUnrolled);
                        }));
  // What is under way uses the graph.
  AMPD_RETURN_IF_ERROR(Annotate(context_->Wait(), "measuring steps"));
  if (!resident_is_faster) resident_ = nullptr;
  return absl::OkStatus();
}

// Steps decide nothing and change nothing from here on, until Start(), and read zeros.
absl::Status CudaStepLoop::HaltOnZeros() {
  runtime::Memory* memory = config_.memory->memory();
  const StepControl halted = {.halt = 1};
  const std::vector<PhaseControl> phases(config_.phases.size());
  const std::vector<runtime::MicroBatchWeight> weights(config_.phases.size() *
                                                       static_cast<size_t>(config_.micro_batches));
  AMPD_RETURN_IF_ERROR(memory->Upload(&halted, sizeof(halted), control_.as<void>()));
  AMPD_RETURN_IF_ERROR(memory->Upload(phases.data(), static_cast<int64_t>(phases.size() * sizeof(PhaseControl)),
                                      phase_controls_.as<void>()));
  AMPD_RETURN_IF_ERROR(memory->Zero(ring_memory_.as<void>(), ring_.bytes_per_slot));
  return memory->Upload(weights.data(), WeightBytes(), ring_memory_.as<void>());
}

absl::Status CudaStepLoop::Start(uint64_t attempted_step, absl::Span<const optim::LossScalerState> scalers) {
  if (!windows_.empty()) return absl::FailedPreconditionError("[cuda step loop] steps are in flight");
  const StepControl control = {.attempted_step = attempted_step, .halt = 0, .records = consumed_};
  runtime::Memory* memory = config_.memory->memory();
  AMPD_RETURN_IF_ERROR(memory->Upload(&control, sizeof(control), control_.as<void>()));
  applied_at_start_.clear();
  for (size_t p = 0; p < scalers.size(); ++p) {
    PhaseControl phase;
    phase.scaler = scalers[p];
    AMPD_RETURN_IF_ERROR(memory->Upload(&phase, sizeof(phase), phase_control(p)));
    applied_at_start_.push_back(scalers[p].steps_applied);
  }
  table_end_ = applied_at_start_;
  std::fill(launched_by_phase_.begin(), launched_by_phase_.end(), 0);
  if (!started_ || attempted_step < oldest_ || attempted_step > fed_end_) fed_end_ = attempted_step;
  oldest_ = launched_end_ = attempted_step;
  started_ = true;
  stopped_ = false;
  return absl::OkStatus();
}

absl::Status CudaStepLoop::CheckFree() const {
  if (static_cast<int64_t>(fed_end_ - oldest_) < ring_.slots) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("[cuda step loop] all ", ring_.slots, " slots hold batches"));
}

absl::Status CudaStepLoop::FeedSamples(absl::Span<const int64_t> samples,
                                       absl::Span<const runtime::MicroBatchWeight> weights) {
  AMPD_RETURN_IF_ERROR(samples_status_);
  AMPD_RETURN_IF_ERROR(CheckFree());
  AMPD_RETURN_IF_ERROR(dataset_->Note(fed_end_, samples, weights));
  ++fed_end_;
  return absl::OkStatus();
}

absl::Status CudaStepLoop::ListPieces(size_t bucket, absl::Span<const runtime::FedInput> inputs,
                                      absl::Span<const runtime::MicroBatchWeight> weights) {
  pieces_.assign({{0, reinterpret_cast<const char*>(weights.data()),
                   static_cast<int64_t>(weights.size() * sizeof(runtime::MicroBatchWeight))}});
  for (const auto& [name, place] : feed_[bucket]) {
    const auto input = std::find_if(inputs.begin(), inputs.end(),
                                    [&n = name](const auto& in) { return in.name == absl::string_view(n); });
    if (input == inputs.end() || input->bytes != place.bytes * config_.micro_batches) {
      return absl::InvalidArgumentError(
          absl::StrCat("[cuda step loop] input ", name, ": ", input == inputs.end() ? 0 : input->bytes,
                       " bytes fed, the plans read ", place.bytes * config_.micro_batches));
    }
    for (int64_t m = 0; m < config_.micro_batches; ++m) {
      pieces_.push_back(
          {place.offset + m * place.stride, static_cast<const char*>(input->data) + m * place.bytes, place.bytes});
    }
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const StagedPiece& a, const StagedPiece& b) { return a.at < b.at; });
  return absl::OkStatus();
}

absl::Status CudaStepLoop::Feed(size_t bucket, absl::Span<const runtime::FedInput> inputs,
                                absl::Span<const runtime::MicroBatchWeight> weights) {
  if (dataset_ != nullptr) return absl::FailedPreconditionError("[cuda step loop] it is fed numbers of samples");
  AMPD_RETURN_IF_ERROR(CheckFree());
  AMPD_RETURN_IF_ERROR(ListPieces(bucket, inputs, weights));
  const auto slot = static_cast<int64_t>(fed_end_ % static_cast<uint64_t>(ring_.slots));
  const int64_t at = slot * ring_.bytes_per_slot;
  // The copy from there before is done: its step was recorded.
  AMPD_RETURN_IF_ERROR(
      copier_->Copy(pieces_, staging_.as<char>() + at, const_cast<char*>(ring_.data) + at, copies_.get()));
  AMPD_CUDA_RETURN_IF_ERROR(cudaEventRecord(fed_events_[static_cast<size_t>(slot)].get(), copies_.get()),
                            "feeding a batch");
  ++fed_end_;
  return absl::OkStatus();
}

// Entries behind table_end_ are of no step in flight, and the copies before their last steps are done: so what is
// staged, which is page-locked and read some time after this, is not written again before it is read.
absl::Status CudaStepLoop::FillTable(size_t phase, int64_t until) {
  int64_t& end = table_end_[phase];
  while (end < until) {
    const int64_t first = end % kTable, count = std::min(until - end, kTable - first);
    auto* staged = table_staging_.as<optim::UpdateScalars>() + static_cast<int64_t>(phase) * kTable + first;
    for (int64_t i = 0; i < count; ++i) staged[i] = config_.phases[phase].scalars(end + i);
    AMPD_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(table(phase) + first, staged, static_cast<size_t>(count) * sizeof(optim::UpdateScalars),
                        cudaMemcpyHostToDevice, stream()),
        "update table");
    end += count;
  }
  return absl::OkStatus();
}

absl::Status CudaStepLoop::Launch(size_t bucket, uint64_t phases, int64_t steps) {
  if (!started_ || steps < 1 || launched_end_ + static_cast<uint64_t>(steps) > fed_end_) {
    return absl::FailedPreconditionError(absl::StrCat("[cuda step loop] ", steps, " steps asked for, ",
                                                      fed_end_ - launched_end_, " fed and not launched"));
  }
  for (size_t p = 0; p < config_.phases.size(); ++p) {
    if ((phases >> p & 1) == 0) continue;
    launched_by_phase_[p] += steps;
    AMPD_RETURN_IF_ERROR(FillTable(p, applied_at_start_[p] + launched_by_phase_[p]));
  }
  const uint64_t end = launched_end_ + static_cast<uint64_t>(steps);
  // Batches are copied in order, so the last one's event is enough.
  const auto last = (end - 1) % static_cast<uint64_t>(ring_.slots);
  if (dataset_ != nullptr) {
    AMPD_RETURN_IF_ERROR(dataset_->Expand(copies_.get(), launched_end_, end));
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventRecord(fed_events_[last].get(), copies_.get()), "feeding batches");
  }
  AMPD_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream(), fed_events_[last].get(), 0), "waiting for a batch");
  // A step in which the phase is not due is counted, and nothing else.
  const bool resident = resident_ != nullptr && phases != 0;
  if (resident) AMPD_RETURN_IF_ERROR(resident_->Enqueue(steps));
  for (int64_t left = resident ? 0 : steps; left > 0;) {
    AMPD_ASSIGN_OR_RETURN(const int64_t some, StepsOfLaunch(bucket, phases, left));
    AMPD_RETURN_IF_ERROR(LaunchSome(bucket, phases, some));
    left -= some;
  }
  AMPD_ASSIGN_OR_RETURN(EventHandle done, TakeEvent());
  AMPD_CUDA_RETURN_IF_ERROR(cudaEventRecord(done.get(), stream()), "launching steps");
  int32_t last_phase = 0;
  for (size_t p = 0; p < config_.phases.size(); ++p) {
    if ((phases >> p & 1) != 0) last_phase = static_cast<int32_t>(p);
  }
  windows_.push_back({end, last_phase, std::move(done)});
  launched_end_ = end;
  return absl::OkStatus();
}

absl::Status CudaStepLoop::LaunchSome(size_t bucket, uint64_t phases, int64_t steps) {
  if (config_.launch == runtime::StepLaunch::kEnqueued) {
    for (int64_t i = 0; i < steps; ++i) AMPD_RETURN_IF_ERROR(Enqueue(bucket, phases, config_.micro_batches));
    return absl::OkStatus();
  }
  AMPD_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, Ready({bucket, phases, steps}));
  return ToStatus(cudaGraphLaunch(graph, stream()), "launching a captured step");
}

absl::StatusOr<int64_t> CudaStepLoop::StepsOfLaunch(size_t bucket, uint64_t phases, int64_t left) {
  if (left < kUnrolled || config_.launch == runtime::StepLaunch::kEnqueued) return 1;
  const auto [nodes, is_new] = step_nodes_.insert({{bucket, phases}, 0});
  if (is_new) {
    AMPD_ASSIGN_OR_RETURN(const CapturedGraph step, Capture({bucket, phases, 1}));
    AMPD_ASSIGN_OR_RETURN(nodes->second, NodesOf(step));
  }
  return nodes->second <= kFewNodes ? kUnrolled : 1;
}

absl::StatusOr<cudaGraphExec_t> CudaStepLoop::Ready(const GraphCache::Key& key) {
  if (const cudaGraphExec_t known = graphs_.Find(key); known != nullptr) return known;
  AMPD_ASSIGN_OR_RETURN(const CapturedGraph graph, Capture(key));
  return graphs_.Add(key, graph);
}

absl::StatusOr<CapturedGraph> CudaStepLoop::Capture(const GraphCache::Key& key) {
  AMPD_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capturing a step");
  absl::Status status;
  for (int64_t i = 0; i < key.steps && status.ok(); ++i) {
    status = Enqueue(key.bucket, key.phases, config_.micro_batches);
  }
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream(), &captured);
  CapturedGraph graph(captured);
  AMPD_RETURN_IF_ERROR(Annotate(status, "capturing a step"));
  AMPD_CUDA_RETURN_IF_ERROR(ended, "capturing a step");
  return graph;
}

absl::Status CudaStepLoop::Enqueue(size_t bucket, uint64_t phases, int64_t micro_batches) {
  for (size_t p = 0; p < config_.phases.size(); ++p) {
    if ((phases >> p & 1) != 0) AMPD_RETURN_IF_ERROR(EnqueuePhase(p, bucket, micro_batches));
  }
  return EnqueueEndStep(stream(), control());
}

absl::Status CudaStepLoop::EnqueuePhase(size_t phase, size_t bucket, int64_t micro_batches) {
  const bool overwrites = config_.phases[phase].executors[bucket]->plan().overwrites_gradients;
  AMPD_RETURN_IF_ERROR(config_.memory->BeginUpdate(overwrites));
  AMPD_RETURN_IF_ERROR(EnqueueBeginPhase(stream(), phase_control(phase)));
  for (int64_t m = 0; m < micro_batches; ++m) AMPD_RETURN_IF_ERROR(EnqueueMicroBatch(phase, bucket, m));
  return EnqueueUpdate(phase);
}

absl::Status CudaStepLoop::EnqueueMicroBatch(size_t phase, size_t bucket, int64_t index) {
  runtime::Executor* executor = config_.phases[phase].executors[bucket];
  const auto p = static_cast<int32_t>(phase);
  AMPD_RETURN_IF_ERROR(EnqueueBeginMicroBatch(stream(), control(), phase_control(phase), ring_, p, index,
                                              config_.micro_batches, config_.micro_batch_size, config_.seed,
                                              executor->step_state()));
  for (const runtime::PlannedTensor& input : executor->plan().inputs) {
    const auto found = feed_[bucket].find(input.name);
    if (found == feed_[bucket].end()) continue;
    const FeedPlace& place = found->second;
    AMPD_ASSIGN_OR_RETURN(void* const buffer, executor->InputBuffer(input.name));
    AMPD_RETURN_IF_ERROR(EnqueueGather(stream(), context_->properties().sm_count, control(), ring_,
                                       place.offset + index * place.stride, place.bytes, buffer));
  }
  AMPD_RETURN_IF_ERROR(executor->Launch());
  AMPD_ASSIGN_OR_RETURN(const TensorView mean, executor->Output("loss"));
  return EnqueueAddLoss(stream(), control(), ring_, p, index, config_.micro_batches, mean.as<float>(),
                        phase_control(phase));
}

absl::Status CudaStepLoop::EnqueueUpdate(size_t phase) {
  PhaseControl* own = phase_control(phase);
  AMPD_RETURN_IF_ERROR(passes_[phase].check->Enqueue(&own->unscale, &own->check));
  AMPD_RETURN_IF_ERROR(EnqueueDecide(stream(), control(), own, DecisionOf(phase), records_));
  AMPD_RETURN_IF_ERROR(passes_[phase].update->Enqueue(&own->update));
  // Of a step that was not applied they are written as they were.
  for (const runtime::ModelLayout::Copy* copy : passes_[phase].copies) {
    AMPD_RETURN_IF_ERROR(config_.memory->Publish(*copy));
  }
  return EnqueueCommitState(stream(), context_->properties().sm_count, own, config_.memory->pending_state(),
                            config_.memory->layout().state_bytes(), config_.memory->state());
}

absl::StatusOr<EventHandle> CudaStepLoop::TakeEvent() {
  if (free_events_.empty()) return EventHandle::Create();
  EventHandle event = std::move(free_events_.back());
  free_events_.pop_back();
  return event;
}

absl::StatusOr<absl::optional<StepRecord>> CudaStepLoop::Next() {
  while (true) {
    // The device writes it behind the records that it counts.
    if (std::atomic_ref<uint64_t>(*records_.count).load(std::memory_order_acquire) > consumed_) {
      const StepRecord record = records_.records[consumed_++ % kRecords];
      stopped_ = stopped_ || !record.decided;
      // A skipped step took no entry of the table: of many in a row none may run round it.
      if (record.decided && record.decision != optim::ScalerDecision::kApply) --launched_by_phase_[record.phase];
      const bool whole = !windows_.empty() && record.phase == windows_.front().last_phase;
      oldest_ = record.attempted_step + (record.decided && whole ? 1 : 0);
      if (!windows_.empty() && oldest_ == windows_.front().end) {
        free_events_.push_back(std::move(windows_.front().done));
        windows_.pop_front();
      }
      return absl::optional<StepRecord>(record);
    }
    if (windows_.empty()) return absl::optional<StepRecord>();
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(windows_.front().done.get()), "waiting for a step");
    if (*const_cast<volatile uint64_t*>(records_.count) > consumed_) continue;
    // Steps in which no phase was due leave no record.
    if (!stopped_) oldest_ = std::max(oldest_, windows_.front().end);
    free_events_.push_back(std::move(windows_.front().done));
    windows_.pop_front();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(Context* context,
                                                                const runtime::StepLoopConfig& config) {
  auto loop = std::make_unique<CudaStepLoop>(context, config);
  AMPD_RETURN_IF_ERROR(Annotate(loop->Open(), "step loop"));
  return std::unique_ptr<runtime::StepLoop>(std::move(loop));
}

}  // namespace ampd::cuda
