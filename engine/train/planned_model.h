// A job's model made ready for one device: every plan, and where everything lies; then the memory to run it in.
#ifndef AMPD_ENGINE_TRAIN_PLANNED_MODEL_H_
#define AMPD_ENGINE_TRAIN_PLANNED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/models/model.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/plan.h"
#include "engine/train/label_weights.h"
#include "engine/train/training_tensors.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// "cpu-..."; any other device is CUDA's.
bool IsCpuDevice(const std::string& device);

// The CPU backend, or a CUDA device's, whose errors are returned.
absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeBackend(const std::string& device, int threads,
                                                              const std::string& autotune_dir = "");

// Samples of one run of the evaluation graph: a micro-batch's, so that evaluating takes no more memory than training.
int64_t EvaluationBatch(const v1::TrainSpec& train);

// One of the updates that make up a step.
struct PlannedPhase {
  explicit PlannedPhase(ResolvedJobSpec spec) : spec(std::move(spec)) {}

  std::string name;
  // It runs in the steps (from 1) that this divides.
  int64_t every = 1;
  // The job as this phase runs it: its own optimizer, and the mode it is in.
  ResolvedJobSpec spec;
  // What the mean of its loss divides by; of a job with networks that of each of its losses, by the plans' input that
  // takes the micro-batch's share.
  LabelWeights label_weights;
  std::vector<std::pair<std::string, LabelWeights>> label_shares;
  // Its training plans: one, or with length buckets one for each, as in SampleInfo::buckets. All have the same inputs
  // and outputs but for the extent of time, and add up gradients in the same order.
  std::vector<runtime::Plan> plans;
  // The parameters that it updates, ascending.
  std::vector<int32_t> parameters;
  optim::OptimizerConfig optimizer;
  // Its moments are the arenas [first_moment, first_moment + optimizer.moments()) of LoadedModel::moments.
  int first_moment = 0;
  // What each parameter's update takes from the optimizer's groups.
  std::vector<runtime::UpdateRange> update_ranges;

  int64_t arena_bytes() const;
};

// Holds no tensors. Not movable: plans point into it.
struct PlannedModel {
  explicit PlannedModel(const ir::Graph& graph) : layout(graph) {}
  PlannedModel(const PlannedModel&) = delete;

  std::unique_ptr<runtime::Backend> backend;
  runtime::ModelLayout layout;
  std::vector<PlannedPhase> phases;
  // Empty for a job with networks.
  runtime::Plan eval;
  // Of models::Model::sample; empty without report.samples.
  runtime::Plan sample;
  std::vector<v1::LayerPlan> layers;
  // As models::Model::padding.
  std::vector<passes::PaddedExtent> padding;
  // Outputs of the network per sample; with several networks, classes or target features of the data.
  int64_t outputs = 0;
  // Arenas of optimizer state. Phases that train the same parameters have their own; others share them.
  int moments = 0;
  // Whether a running average of the masters is kept.
  bool keeps_average = false;
  // LoaderBytes of the job.
  int64_t loader_bytes = 0;

  // Masters, gradients, moments, average, published copies (and what writing them takes) and state; bytes.
  int64_t parameter_bytes() const;
  // The arena that all plans share; bytes.
  int64_t activation_bytes() const;
  // Where the backend's memory is not the host's, what batches and constants take there besides; else 0. Bytes.
  int64_t input_bytes() const;
  // Trainable numbers.
  int64_t parameters() const;
};

// What a training's loader takes for its batches where nobody asks for more of them, in the host's memory; bytes.
int64_t LoaderBytes(const models::SampleInfo& sample, int64_t batch_size);

// What of the backend's offers plans take.
enum class Fusion {
  kNone,    // every value of the training graph is written to memory, for whoever wants to look at it
  kChains,  // elementwise chains are one node each, large logits and 8-bit products' results stay in 16 bits, weights'
            // gradients in f32 and, of a single micro-batch, where they are made
  kAll,     // and products are joined with what follows them
};

// Of models with several replicas. A joined product is tried out in memory of its own when it first runs, and memory
// that is freed while collectives are under way may wait for them, and they for it.
inline constexpr Fusion kReplicaFusion = Fusion::kChains;

// INVALID_ARGUMENT with field violations when the model does not fit the data, or the optimizer's groups the model.
// `fell_back`: by phase, whether it computes in BF16 whatever the spec says; empty: none does. `replicas`: as many
// share each batch.
absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const ResolvedJobSpec& spec, const models::SampleInfo& sample,
                                                        std::unique_ptr<runtime::Backend> backend, int threads,
                                                        Fusion fusion = Fusion::kAll,
                                                        const std::vector<bool>& fell_back = {}, int64_t replicas = 1);

// The optimizer's state of one phase, for checkpoints.
std::vector<PhaseMoments> MomentsOf(const PlannedModel& plan, const Moments& moments);

// The memory of a planned model, all of it the backend's, and what runs in it. Not movable; `plan` outlives it.
struct LoadedModel {
  // RESOURCE_EXHAUSTED, with both figures, when the plan needs more than the memory that the backend has, or, with what
  // was asked and what was free, when less of it was free. Other errors are the memory's.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Create(const PlannedModel& plan);
  LoadedModel(const LoadedModel&) = delete;

  // Starts the running average, where one is kept, from the masters.
  absl::Status StartAverage();
  // Exchanges masters and running average, and publishes what are the masters then. An average must be kept. The
  // gradients are overwritten.
  absl::Status SwapAverage();

  runtime::ModelMemory memory;
  Moments moments;
  // The running average of the masters, where one is kept; laid out as they are.
  Moments average;
  runtime::Buffer arena;
  // What executors copy their inputs to where they must; they share it.
  runtime::Buffer inputs;
  // By phase and plan of the phase.
  std::vector<std::vector<std::unique_ptr<runtime::Executor>>> train;
  std::unique_ptr<runtime::Executor> eval;
  std::unique_ptr<runtime::Executor> sample;

 private:
  LoadedModel(runtime::ModelMemory own_memory, Moments own_moments, Moments own_average)
      : memory(std::move(own_memory)), moments(std::move(own_moments)), average(std::move(own_average)) {}
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Allocate(const PlannedModel& plan);
  absl::Status MakeExecutors(const PlannedModel& plan);
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PLANNED_MODEL_H_
