#include "engine/train/planned_model.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/passes/fuse.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/split_norms.h"
#include "engine/train/parameter_groups.h"
#include "engine/train/spec_configs.h"

namespace ampd::train {
namespace {

// Enough to keep the threads busy; without gradients to keep, no more memory than a training step takes.
constexpr int64_t kLargestUsefulEvaluationBatch = 128;

int64_t MachineBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)}; }

}  // namespace

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeBackend(const std::string& device, int threads) {
  if (absl::StartsWith(device, "cpu-")) return MakeCpuBackend(threads);
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeCudaBackend());
  return backend;
}

int64_t EvaluationBatch(const v1::TrainSpec& train) {
  return std::max(train.micro_batch_size(), std::min(train.batch_size(), kLargestUsefulEvaluationBatch));
}

int64_t PlannedModel::parameter_bytes() const {
  const int64_t arenas = 2 + optimizer.moments() + (keeps_average ? 1 : 0);
  return arenas * layout.arena_elements() * SizeOf(DType::kF32) + layout.published_bytes() + 2 * layout.state_bytes();
}

int64_t PlannedModel::activation_bytes() const { return std::max(train.arena_bytes, eval.arena_bytes); }

int64_t PlannedModel::parameters() const {
  int64_t count = 0;
  for (const ir::Persistent& parameter : layout.parameters()) count += NumElements(parameter.type.shape);
  return count;
}

absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                                        std::unique_ptr<runtime::Backend> backend, int threads,
                                                        bool fuse) {
  const v1::TrainSpec& train = spec.proto().train();
  AMPD_ASSIGN_OR_RETURN(models::Model model, models::BuildModel(spec, sample, train.micro_batch_size(),
                                                                EvaluationBatch(train), backend->padding()));
  const auto can_fuse = [&](ir::OpKind op) { return fuse && backend->CanFuse(op); };
  passes::Pipeline fusion;
  fusion.Add("split_norms", [&](ir::Graph g) { return passes::SplitNorms(std::move(g), can_fuse); })
      .Add("fuse", [&](ir::Graph g) { return passes::Fuse(std::move(g), can_fuse); });
  AMPD_ASSIGN_OR_RETURN(model.train, fusion.Run(std::move(model.train)));
  AMPD_ASSIGN_OR_RETURN(model.eval, fusion.Run(std::move(model.eval)));
  auto planned = std::make_unique<PlannedModel>(model.train);
  planned->backend = std::move(backend);
  AMPD_ASSIGN_OR_RETURN(planned->train, runtime::MakePlan(model.train, *planned->backend, threads, &planned->layout));
  AMPD_ASSIGN_OR_RETURN(planned->eval, runtime::MakePlan(model.eval, *planned->backend, threads, &planned->layout));
  planned->layers = std::move(model.layers);
  planned->outputs = planned->eval.outputs.at("logits").type.shape.back();
  planned->label_weights = LabelWeights(spec.proto().model().loss(), planned->outputs);
  planned->optimizer = OptimizerConfigOf(spec);
  planned->keeps_average = spec.proto().optimizer().has_ema();
  AMPD_ASSIGN_OR_RETURN(planned->update_ranges, UpdateRangesOf(spec, planned->layout));
  return planned;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Create(const PlannedModel& plan) {
  const int64_t needed = plan.parameter_bytes() + plan.activation_bytes();
  if (needed > MachineBytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("the model needs ", needed, " bytes (", plan.parameter_bytes(),
                                                     " for parameters, ", plan.activation_bytes(),
                                                     " for activations), the machine has ", MachineBytes()));
  }
  return std::make_unique<LoadedModel>(plan);
}

LoadedModel::LoadedModel(const PlannedModel& plan)
    : memory(&plan.layout),
      moments(plan.layout, plan.optimizer.moments(), plan.optimizer.initial_moment()),
      average(plan.layout, plan.keeps_average ? 1 : 0),
      arena(plan.activation_bytes()),
      train(&plan.train, &memory, &arena),
      eval(&plan.eval, &memory, &arena) {}

void LoadedModel::StartAverage() {
  if (average.count() > 0) std::copy_n(memory.masters(), memory.layout().arena_elements(), average.arena(0));
}

absl::Status LoadedModel::SwapAverage() {
  std::swap_ranges(memory.masters(), memory.masters() + memory.layout().arena_elements(), average.arena(0));
  return memory.PublishAll();
}

}  // namespace ampd::train
