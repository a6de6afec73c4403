#include "engine/train/planned_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/data/loader.h"
#include "engine/passes/add_to_norm_grads.h"
#include "engine/passes/fuse.h"
#include "engine/passes/gate_norm_grads.h"
#include "engine/passes/join_products.h"
#include "engine/passes/overwrite_gradients.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/read_narrow.h"
#include "engine/passes/round_pads.h"
#include "engine/passes/scale_products.h"
#include "engine/passes/split_norms.h"
#include "engine/passes/turn_codes.h"
#include "engine/passes/widen_gradients.h"
#include "engine/train/parameter_groups.h"
#include "engine/train/spec_configs.h"
#include "proto/spec/device_memory.h"

namespace ampd::train {

bool IsCpuDevice(const std::string& device) { return absl::StartsWith(device, "cpu-"); }

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeBackend(const std::string& device, int threads,
                                                              const std::string& autotune_dir) {
  if (IsCpuDevice(device)) return MakeCpuBackend(threads);
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeCudaBackend(device, autotune_dir));
  return backend;
}

int64_t EvaluationBatch(const v1::TrainSpec& train) { return train.micro_batch_size(); }

int64_t PlannedPhase::arena_bytes() const {
  int64_t bytes = 0;
  for (const runtime::Plan& plan : plans) bytes = std::max(bytes, plan.arena_bytes);
  return bytes;
}

int64_t PlannedModel::parameter_bytes() const {
  const int64_t arenas = 2 + moments + (keeps_average ? 1 : 0);
  return arenas * layout.arena_elements() * SizeOf(DType::kF32) + layout.published_bytes() +
         layout.publish_workspace_bytes() + 2 * layout.state_bytes();
}

int64_t PlannedModel::activation_bytes() const {
  int64_t bytes = std::max(eval.arena_bytes, sample.arena_bytes);
  for (const PlannedPhase& phase : phases) bytes = std::max(bytes, phase.arena_bytes());
  return bytes;
}

int64_t PlannedModel::input_bytes() const {
  if (backend->memory()->on_host()) return 0;
  int64_t inputs = std::max(eval.input_bytes, sample.input_bytes);
  int64_t constants = eval.constant_bytes + sample.constant_bytes;
  for (const PlannedPhase& phase : phases) {
    for (const runtime::Plan& plan : phase.plans) {
      inputs = std::max(inputs, plan.input_bytes);
      constants += plan.constant_bytes;
    }
  }
  return inputs + constants;
}

int64_t PlannedModel::parameters() const {
  int64_t count = 0;
  for (const ir::Persistent& parameter : layout.parameters()) count += NumElements(parameter.type.shape);
  return count;
}

namespace {

absl::StatusOr<std::vector<PlannedPhase>> PhasesOf(const ResolvedJobSpec& spec, const std::vector<bool>& fell_back) {
  std::vector<PlannedPhase> phases;
  for (int i = 0; i < spec.proto().phases_size(); ++i) {
    const bool bf16 = static_cast<size_t>(i) < fell_back.size() && fell_back[static_cast<size_t>(i)];
    AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec own, PhaseSpecOf(spec, i));
    if (bf16) {
      AMPD_ASSIGN_OR_RETURN(own, WithMode(own, v1::PrecisionSpec::BF16));
    }
    phases.emplace_back(std::move(own));
    phases.back().name = spec.proto().phases(i).name();
    phases.back().every = spec.proto().phases(i).every();
    phases.back().optimizer = OptimizerConfigOf(phases.back().spec);
  }
  return phases;
}

bool Overlap(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

// Gives phase `index` arenas that no earlier phase uses for one of its parameters.
void PlaceMoments(size_t index, PlannedModel* planned) {
  PlannedPhase& phase = planned->phases[index];
  for (size_t i = 0; i < index; ++i) {
    const PlannedPhase& earlier = planned->phases[i];
    if (!Overlap(phase.parameters, earlier.parameters)) continue;
    phase.first_moment = std::max(phase.first_moment, earlier.first_moment + earlier.optimizer.moments());
  }
  planned->moments = std::max(planned->moments, phase.first_moment + phase.optimizer.moments());
}

std::vector<int32_t> Indices(const std::vector<bool>& chosen) {
  std::vector<int32_t> indices;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) indices.push_back(static_cast<int32_t>(i));
  }
  return indices;
}

// A layer whose parameters depend on the extent of time cannot be shared by buckets.
absl::Status CheckSameParameters(const ir::Graph& graph, int64_t bucket, const runtime::ModelLayout& layout) {
  const auto same = [](const ir::Persistent& a, const ir::Persistent& b) {
    return a.name == b.name && a.type == b.type;
  };
  const std::vector<ir::Persistent>&parameters = layout.parameters(), &states = layout.states();
  if (std::equal(parameters.begin(), parameters.end(), graph.parameters.begin(), graph.parameters.end(), same) &&
      std::equal(states.begin(), states.end(), graph.states.begin(), graph.states.end(), same)) {
    return absl::OkStatus();
  }
  return InvalidFields({{"model", absl::StrCat("has other parameters for sequences of ", bucket, " steps")}});
}

// `planned` has plans for the last bucket.
absl::Status PlanShorterBuckets(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                const std::vector<v1::PrecisionSpec>& precisions, const passes::Pipeline& fusion,
                                int threads, PlannedModel* planned) {
  for (size_t b = 0; b + 1 < sample.buckets.size(); ++b) {
    models::SampleInfo shorter = sample;
    shorter.input_shape[0] = sample.buckets[b];
    if (!sample.label_shape.empty() && !spec.proto().model().loss().has_ctc())
      shorter.label_shape = {sample.buckets[b]};
    const int64_t batch = spec.proto().train().micro_batch_size();
    AMPD_ASSIGN_OR_RETURN(models::Model model,
                          models::BuildModel(spec, shorter, batch, batch, planned->backend->padding(), precisions));
    for (size_t i = 0; i < planned->phases.size(); ++i) {
      std::vector<runtime::Plan>& plans = planned->phases[i].plans;
      AMPD_ASSIGN_OR_RETURN(const ir::Graph graph, fusion.Run(std::move(model.phases[i].train)));
      AMPD_RETURN_IF_ERROR(CheckSameParameters(graph, sample.buckets[b], planned->layout));
      AMPD_ASSIGN_OR_RETURN(runtime::Plan plan, runtime::MakePlan(graph, *planned->backend, threads, &planned->layout));
      if (plan.gradient_order != plans.back().gradient_order) {
        return absl::InternalError(
            absl::StrCat("[plan] gradients come in another order for sequences of ", sample.buckets[b], " steps"));
      }
      plans.insert(plans.end() - 1, std::move(plan));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t LoaderBytes(const models::SampleInfo& sample, int64_t batch_size) {
  const int64_t labels = sample.label_shape.empty() ? 1 : NumElements(sample.label_shape);
  const int64_t numbers = NumElements(sample.input_shape) + (sample.classes > 0 ? labels : sample.target_features);
  return data::LoaderOptions().depth * batch_size * numbers * SizeOf(DType::kF32);
}

absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                                        std::unique_ptr<runtime::Backend> backend, int threads,
                                                        Fusion fusion, const std::vector<bool>& fell_back,
                                                        int64_t replicas) {
  const v1::TrainSpec& train = spec.proto().train();
  AMPD_ASSIGN_OR_RETURN(std::vector<PlannedPhase> phases, PhasesOf(spec, fell_back));
  std::vector<v1::PrecisionSpec> precisions;
  for (const PlannedPhase& phase : phases) precisions.push_back(phase.spec.proto().precision());
  AMPD_ASSIGN_OR_RETURN(models::Model model,
                        models::BuildModel(spec, sample, train.micro_batch_size(), EvaluationBatch(train),
                                           backend->padding(), precisions));
  const auto can_fuse = [fusion, target = backend.get()](ir::OpKind op) {
    return fusion != Fusion::kNone && target->CanFuse(op);
  };
  const passes::JoinPolicy joins = fusion == Fusion::kAll ? backend->joins() : passes::JoinPolicy();
  passes::Pipeline pipeline;
  if (fusion != Fusion::kNone) {
    pipeline.Add("read_narrow", [](ir::Graph g) { return passes::ReadNarrow(std::move(g)); })
        .Add("round_pads", [](ir::Graph g) { return passes::RoundPads(std::move(g)); })
        .Add("scale_products", passes::ScaleProducts)
        .Add("turn_codes", [turns = backend->turns_codes()](
                               ir::Graph g) { return turns ? passes::TurnCodes(std::move(g)) : std::move(g); })
        .Add("widen_gradients", passes::WidenGradients)
        .Add("add_to_norm_grads", passes::AddToNormGrads);
  }
  pipeline.Add("split_norms", [&](ir::Graph g) { return passes::SplitNorms(std::move(g), can_fuse); });
  // A CPU takes longer to compute the norm again than to read what its relu left.
  if (!backend->memory()->on_host()) pipeline.Add("gate_norm_grads", passes::GateNormGrads);
  pipeline.Add("fuse", [&](ir::Graph g) { return passes::Fuse(std::move(g), can_fuse); })
      .Add("join_products", [&](ir::Graph g) { return passes::JoinProducts(std::move(g), joins); });
  // Graphs without a backward pass have no gradients.
  if (fusion != Fusion::kNone && train.batch_size() == replicas * train.micro_batch_size()) {
    pipeline.Add("overwrite_gradients", passes::OverwriteGradients);
  }
  auto planned = std::make_unique<PlannedModel>(model.phases[0].train);
  planned->backend = std::move(backend);
  planned->phases = std::move(phases);
  for (size_t i = 0; i < planned->phases.size(); ++i) {
    PlannedPhase& phase = planned->phases[i];
    AMPD_ASSIGN_OR_RETURN(const ir::Graph graph, pipeline.Run(std::move(model.phases[i].train)));
    AMPD_ASSIGN_OR_RETURN(runtime::Plan plan, runtime::MakePlan(graph, *planned->backend, threads, &planned->layout));
    phase.plans.push_back(std::move(plan));
    for (const models::PhaseGraph::LabelShare& share : model.phases[i].label_shares) {
      phase.label_shares.push_back({share.input, LabelWeights(share.loss, share.outputs)});
    }
    phase.parameters = Indices(model.phases[i].trains);
    AMPD_ASSIGN_OR_RETURN(phase.update_ranges, UpdateRangesOf(phase.spec, planned->layout, phase.parameters,
                                                              OptimizerField(spec, static_cast<int>(i))));
    PlaceMoments(i, planned.get());
  }
  const bool evaluates = spec.proto().model().networks().empty();
  if (evaluates) {
    AMPD_ASSIGN_OR_RETURN(const ir::Graph eval, pipeline.Run(std::move(model.eval)));
    AMPD_ASSIGN_OR_RETURN(planned->eval, runtime::MakePlan(eval, *planned->backend, threads, &planned->layout));
  }
  if (!model.sample.nodes.empty()) {
    AMPD_ASSIGN_OR_RETURN(const ir::Graph sampled, pipeline.Run(std::move(model.sample)));
    AMPD_ASSIGN_OR_RETURN(planned->sample, runtime::MakePlan(sampled, *planned->backend, threads, &planned->layout));
  }
  planned->layers = std::move(model.layers);
  planned->padding = std::move(model.padding);
  planned->outputs = evaluates            ? planned->eval.outputs.at("logits").type.shape.back()
                     : sample.classes > 0 ? sample.classes
                                          : sample.target_features;
  if (evaluates) planned->phases[0].label_weights = LabelWeights(spec.proto().model().loss(), planned->outputs);
  planned->keeps_average = spec.proto().optimizer().has_ema();
  planned->loader_bytes = LoaderBytes(sample, train.batch_size());
  AMPD_RETURN_IF_ERROR(PlanShorterBuckets(spec, sample, precisions, pipeline, threads, planned.get()));
  return planned;
}

std::vector<PhaseMoments> MomentsOf(const PlannedModel& plan, const Moments& moments) {
  std::vector<PhaseMoments> all;
  for (const PlannedPhase& phase : plan.phases) {
    const std::string prefix = plan.phases.size() > 1 ? absl::StrCat(phase.name, ".") : "";
    PhaseMoments own{prefix, phase.parameters, {}};
    for (int m = 0; m < phase.optimizer.moments(); ++m) own.arenas.push_back(moments.arena(phase.first_moment + m));
    all.push_back(std::move(own));
  }
  return all;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Create(const PlannedModel& plan) {
  const int64_t needed = plan.parameter_bytes() + plan.activation_bytes() + plan.input_bytes();
  const int64_t total = plan.backend->memory()->total_bytes();
  const std::string needs = absl::StrCat(
      "the model needs ", Gibibytes(needed), " (", Gibibytes(plan.parameter_bytes()), " for parameters, ",
      Gibibytes(plan.activation_bytes()), " for activations",
      plan.input_bytes() > 0 ? absl::StrCat(", ", Gibibytes(plan.input_bytes()), " for batches and constants") : "",
      ")");
  if (needed > total) {
    return absl::ResourceExhaustedError(
        absl::StrCat(needs, ", the ", plan.backend->name(), " device has ", Gibibytes(total)));
  }
  absl::StatusOr<std::unique_ptr<LoadedModel>> model = Allocate(plan);
  if (absl::IsResourceExhausted(model.status())) return Annotate(model.status(), needs);
  return model;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Allocate(const PlannedModel& plan) {
  runtime::Memory* device = plan.backend->memory();
  AMPD_ASSIGN_OR_RETURN(runtime::ModelMemory memory, runtime::ModelMemory::Create(&plan.layout, device));
  AMPD_ASSIGN_OR_RETURN(Moments moments, Moments::Create(plan.layout, plan.moments, device));
  AMPD_ASSIGN_OR_RETURN(Moments average, Moments::Create(plan.layout, plan.keeps_average ? 1 : 0, device));
  std::unique_ptr<LoadedModel> model(new LoadedModel(std::move(memory), std::move(moments), std::move(average)));
  AMPD_ASSIGN_OR_RETURN(model->arena, runtime::Buffer::Allocate(device, plan.activation_bytes(), "activations"));
  AMPD_RETURN_IF_ERROR(model->MakeExecutors(plan));
  for (const PlannedPhase& phase : plan.phases) {
    for (int m = 0; m < phase.optimizer.moments(); ++m) {
      AMPD_RETURN_IF_ERROR(
          model->moments.Fill(phase.first_moment + m, phase.parameters, phase.optimizer.initial_moment()));
    }
  }
  return model;
}

absl::Status LoadedModel::MakeExecutors(const PlannedModel& plan) {
  if (!memory.memory()->on_host()) {
    int64_t bytes = std::max(plan.eval.input_bytes, plan.sample.input_bytes);
    for (const PlannedPhase& phase : plan.phases) {
      for (const runtime::Plan& p : phase.plans) bytes = std::max(bytes, p.input_bytes);
    }
    AMPD_ASSIGN_OR_RETURN(inputs, runtime::Buffer::Allocate(memory.memory(), bytes, "batches"));
  }
  for (const PlannedPhase& phase : plan.phases) {
    train.emplace_back();
    for (const runtime::Plan& p : phase.plans) {
      AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Executor> executor,
                            runtime::Executor::Create(&p, &memory, &arena, &inputs));
      train.back().push_back(std::move(executor));
    }
  }
  AMPD_ASSIGN_OR_RETURN(eval, runtime::Executor::Create(&plan.eval, &memory, &arena, &inputs));
  AMPD_ASSIGN_OR_RETURN(sample, runtime::Executor::Create(&plan.sample, &memory, &arena, &inputs));
  return absl::OkStatus();
}

absl::Status LoadedModel::StartAverage() {
  if (average.count() == 0) return absl::OkStatus();
  const int64_t bytes = memory.layout().arena_elements() * SizeOf(DType::kF32);
  return memory.memory()->Copy(memory.masters(), bytes, average.arena(0));
}

absl::Status LoadedModel::SwapAverage() {
  const int64_t bytes = memory.layout().arena_elements() * SizeOf(DType::kF32);
  runtime::Memory* device = memory.memory();
  AMPD_RETURN_IF_ERROR(device->Copy(memory.masters(), bytes, memory.gradients()));
  AMPD_RETURN_IF_ERROR(device->Copy(average.arena(0), bytes, memory.masters()));
  AMPD_RETURN_IF_ERROR(device->Copy(memory.gradients(), bytes, average.arena(0)));
  return memory.PublishAll();
}

}  // namespace ampd::train
