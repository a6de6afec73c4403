// From spec messages to the engine's plain structs.
#ifndef AMPD_ENGINE_TRAIN_SPEC_CONFIGS_H_
#define AMPD_ENGINE_TRAIN_SPEC_CONFIGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/core/dtype.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// The dtype parameters are rounded to after each update: the mode's 16-bit type where `precision.master_weights` is
// false, else kF32.
DType MasterDType(const ResolvedJobSpec& spec);
optim::OptimizerConfig OptimizerConfigOf(const ResolvedJobSpec& spec);
optim::LossScaleConfig LossScaleConfigOf(const ResolvedJobSpec& spec);
// Attempted steps in all, on a training set of so many samples; 0 where they fill no batch and no steps are given.
int64_t TotalSteps(const v1::TrainSpec& train, int64_t samples);
// `total_steps`: planned for the job, >= 1.
optim::ScheduleConfig ScheduleConfigOf(const ResolvedJobSpec& spec, int64_t total_steps);

// Sets the mode; layers that a rule holds in the mode before follow, and rules that ask for something that the new one
// does not allow fall away.
void ChangeMode(v1::PrecisionSpec::Mode mode, v1::PrecisionSpec* precision);

// `spec` as it would be in another mode, by ChangeMode(), without loss scaling. Errors are ResolveJobSpec's.
absl::StatusOr<ResolvedJobSpec> WithMode(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode);

// `spec` as phase `phase` runs it: with the phase's optimizer, and the job's running average, as the job's.
absl::StatusOr<ResolvedJobSpec> PhaseSpecOf(const ResolvedJobSpec& spec, int phase);
// Where the phase's optimizer stands: "optimizer" or "phases[1].optimizer".
std::string OptimizerField(const ResolvedJobSpec& spec, int phase);

// 64 hex digits over what the numbers of a training follow from: seed, model, data, precision, optimizer and train.
// Checkpoints of one hash do not fit a job of another. Hashes of other builds may be others, since fields may have been
// added: a checkpoint is compared by HashOfHashedSpec().
std::string SpecHash(const ResolvedJobSpec& spec);

// What SpecHash() is of.
v1::JobSpec HashedParts(const ResolvedJobSpec& spec);

// HashedParts() as JSON; for checkpoints.
std::string HashedSpec(const ResolvedJobSpec& spec);

// The spec that HashedSpec() of this build or an earlier one tells of, with today's defaults for the fields that it did
// not know and for what HashedParts() leaves out. INVALID_ARGUMENT when this build does not know a field or accept the
// spec.
absl::StatusOr<ResolvedJobSpec> ReadHashedSpec(const std::string& json);

// SpecHash() of that. Errors as ReadHashedSpec().
absl::StatusOr<std::string> HashOfHashedSpec(const std::string& json);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SPEC_CONFIGS_H_
