#include "engine/train/continuation.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/failure.h"
#include "engine/train/onnx_file.h"
#include "engine/train/spec_configs.h"
#include "engine/train/start_weights.h"
#include "proto/spec/differences.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

constexpr char kField[] = "start_from.continue_training";
constexpr size_t kFieldsTold = 5;
constexpr size_t kMostValueBytes = 60;

// What moments there are, and what they mean: m1 of one setting may be the mean square, and of another a momentum; and
// what was summed up with one rate is corrected (Adam's bias), or weighed, by the same.
v1::OptimizerSpec Moments(const v1::OptimizerSpec& optimizer) {
  v1::OptimizerSpec moments;
  const auto take_betas = [](const auto& from, auto* to) {
    to->set_beta1(from.beta1());
    to->set_beta2(from.beta2());
  };
  switch (optimizer.kind_case()) {
    case v1::OptimizerSpec::kSgd:
      moments.mutable_sgd()->set_momentum(optimizer.sgd().momentum());
      moments.mutable_sgd()->set_dampening(optimizer.sgd().dampening());
      break;
    case v1::OptimizerSpec::kAdam:
      take_betas(optimizer.adam(), moments.mutable_adam());
      break;
    case v1::OptimizerSpec::kAdamw:
      take_betas(optimizer.adamw(), moments.mutable_adamw());
      break;
    case v1::OptimizerSpec::kRmsprop:
      moments.mutable_rmsprop()->set_centered(optimizer.rmsprop().centered());
      moments.mutable_rmsprop()->set_smoothing(optimizer.rmsprop().smoothing());
      moments.mutable_rmsprop()->set_momentum(optimizer.rmsprop().momentum());
      break;
    case v1::OptimizerSpec::kAdagrad:
      moments.mutable_adagrad()->set_initial_accumulator(optimizer.adagrad().initial_accumulator());
      break;
    case v1::OptimizerSpec::kLamb:
      take_betas(optimizer.lamb(), moments.mutable_lamb());
      break;
    case v1::OptimizerSpec::KIND_NOT_SET:
      break;
  }
  if (optimizer.has_ema()) moments.mutable_ema();
  return moments;
}

// What has to be the same: all that numbers follow from, but for what steers the steps to come.
v1::JobSpec Fixed(const ResolvedJobSpec& spec) {
  v1::JobSpec parts = HashedParts(spec);
  v1::DataSpec* data = parts.mutable_data();
  data->clear_eval();
  data->clear_cache();
  data->clear_max_corrupt_ratio();
  data->clear_decode_threads();
  if (parts.precision().has_loss_scale()) {
    parts.mutable_precision()->mutable_loss_scale()->clear_on_floor();
    parts.mutable_precision()->mutable_loss_scale()->clear_max_rollbacks();
  }
  const int64_t batch_size = parts.train().batch_size();
  parts.clear_train();
  parts.mutable_train()->set_batch_size(batch_size);
  *parts.mutable_optimizer() = Moments(parts.optimizer());
  for (v1::PhaseSpec& phase : *parts.mutable_phases()) *phase.mutable_optimizer() = Moments(phase.optimizer());
  return parts;
}

}  // namespace

absl::Status CheckContinues(const TrainState& state, const ResolvedJobSpec& spec, const TrainingLength& length) {
  const std::string name = StartName(spec.proto().start_from());
  if (state.spec.empty()) {
    return InvalidFields({{kField, absl::StrCat(name,
                                                " was written by an earlier build and does not tell of its "
                                                "spec; a job may start from its weights")}});
  }
  const absl::StatusOr<ResolvedJobSpec> before = ReadHashedSpec(state.spec);
  if (!before.ok()) {
    return InvalidFields(
        {{kField, absl::StrCat(name, " is of a spec that this build refuses: ", before.status().message())}});
  }
  // As a checkpoint gives it back: JSON's -0 is read as 0.
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec now, ReadHashedSpec(HashedSpec(spec)));
  std::vector<FieldViolation> violations;
  const std::vector<FieldDifference> differences = Differences(Fixed(*before), Fixed(now), kFieldsTold);
  if (!differences.empty()) {
    const std::string fields = absl::StrJoin(differences, "; ", [](std::string* text, const FieldDifference& field) {
      if (field.field == kMoreFields) {
        absl::StrAppend(text, field.a);
      } else {
        absl::StrAppend(text, field.field, " was ", Cut(field.a, kMostValueBytes), ", is ",
                        Cut(field.b, kMostValueBytes));
      }
    });
    violations.push_back({kField, absl::StrCat(name, " is of another training: ", fields)});
  }
  if (state.input.samples > 0 && state.input.samples != length.samples) {
    violations.push_back({"data.train", absl::StrCat("has ", length.samples, " samples, and had ", state.input.samples,
                                                     " in the training of ", name)});
  }
  if (length.length_buckets && !state.input.length_buckets.empty() &&
      state.input.length_buckets != *length.length_buckets) {
    violations.push_back(
        {"data.length_buckets",
         absl::StrCat(
             "sequences would be padded to ", absl::StrJoin(*length.length_buckets, ", "), " steps, and were to ",
             absl::StrJoin(state.input.length_buckets, ", "), " in the training of ", name,
             ": without buckets of the file's they follow from the longest sample, data.eval's too; give them")});
  }
  if (state.step >= length.steps) {
    const bool by_steps = spec.proto().train().has_steps();
    violations.push_back({by_steps ? "train.steps" : "train.epochs",
                          absl::StrCat("ends the training at step ", length.steps, ", and ", name, " stands at step ",
                                       state.step, " already: its steps count")});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

absl::Status CheckContinues(const std::string& folder, const ResolvedJobSpec& spec, const TrainingLength& length) {
  const absl::StatusOr<TrainState> state = ReadTrainState(folder);
  if (absl::IsFailedPrecondition(state.status())) {
    return InvalidFields({{kField, std::string(state.status().message())}});
  }
  AMPD_RETURN_IF_ERROR(state.status());
  AMPD_RETURN_IF_ERROR(CheckContinues(*state, spec, length));
  const absl::Status file = CheckOnnxFile(spec, state->onnx_sha256);
  return file.ok() ? file : InvalidFields({{"model.onnx.path", std::string(file.message())}});
}

absl::StatusOr<LoadedCheckpoint> LoadContinued(const std::string& folder, const ResolvedJobSpec& spec,
                                               const TrainingLength& length) {
  const v1::WeightSource& source = spec.proto().start_from();
  absl::StatusOr<LoadedCheckpoint> loaded = LoadCheckpoint(folder, source.checkpoint());
  if (!loaded.ok()) {
    const absl::Status status = Annotate(loaded.status(), absl::StrCat("start_from: ", StartName(source)));
    // It is so the next time too; one that cannot be read may be whole.
    return absl::IsUnavailable(status) ? status : WithFailureClass(status, v1::Failure::DATA);
  }
  AMPD_RETURN_IF_ERROR(CheckContinues(loaded->state, spec, length));
  loaded->state.best.reset();
  loaded->state.stopping.reset();
  for (PhaseState& phase : loaded->state.phases) {
    phase.skips = {};
    phase.scaler.rollbacks = 0;
    phase.inherited_applied = phase.scaler.steps_applied;
    phase.inherited_skipped = phase.scaler.steps_skipped;
  }
  return loaded;
}

}  // namespace ampd::train
