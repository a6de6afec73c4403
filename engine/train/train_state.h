// Where a training stands, but for its tensors: what state.json in a checkpoint holds.
#ifndef AMPD_ENGINE_TRAIN_TRAIN_STATE_H_
#define AMPD_ENGINE_TRAIN_TRAIN_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/optim/loss_scaler.h"
#include "engine/train/skip_guard.h"

namespace ampd::train {

struct PhaseState {
  std::string name;
  // Its steps_applied is also the position of the learning-rate schedule.
  optim::LossScalerState scaler;
  SkipHistory skips;
  // Of the newest step whose loss was finite; nullopt: there was none, or an earlier build wrote the checkpoint.
  std::optional<double> loss = std::nullopt;
  // Of a training that another job began (start_from.continue_training): the counts of `scaler` that are that one's,
  // and are not told as this job's.
  int64_t inherited_applied = 0;
  int64_t inherited_skipped = 0;

  // Of this job alone.
  int64_t own_applied() const { return scaler.steps_applied - inherited_applied; }
  int64_t own_skipped() const { return scaler.steps_skipped - inherited_skipped; }

  bool operator==(const PhaseState&) const = default;
};

// Of the evaluations so far the one that checkpoint.keep_best prefers.
struct BestEvaluation {
  int64_t step = 0;
  double metric = 0;

  bool operator==(const BestEvaluation&) const = default;
};

// What train.early_stopping goes by.
struct StoppingState {
  // Of the newest evaluation that counted as better, and its metric. NaN where there was none yet.
  int64_t best_step = 0;
  double best_metric = 0;
  // Of the newest evaluation that counted at all.
  int64_t step = 0;
  // Evaluations since the best one.
  int64_t waited = 0;
  // Steps applied before the newest evaluation, of all phases.
  int64_t applied = 0;

  bool operator==(const StoppingState&) const = default;
};

// What whoever uses the weights elsewhere must know of the inputs. A training finds it anew, and compares.
struct InputNotes {
  // A stored value x (of images 0 to 255) of channel c became (x - mean[c]) / std[c]; of one mean, every channel.
  std::vector<double> mean;
  std::vector<double> std;
  // Names of the classes by label; empty where the data has none.
  std::vector<std::string> classes;
  // Of the training set; 0 in what earlier builds wrote.
  int64_t samples = 0;
  // Of sequences: the lengths to which batches of the training set are padded, and by which they are put together;
  // empty in what earlier builds wrote too.
  std::vector<int64_t> length_buckets = {};

  bool operator==(const InputNotes&) const = default;
};

struct TrainState {
  // Attempted steps: also the data cursor and, with the seed, the whole state of every random stream.
  int64_t step = 0;
  uint64_t seed = 0;
  // SpecHash() of the job, by the build that wrote it.
  std::string spec_hash;
  // HashedSpec() of the job; empty in version 2.
  std::string spec;
  std::vector<PhaseState> phases;
  InputNotes input;
  // SHA-256 of the file of model.onnx, whose network the tensors belong to; empty where there is none, and in what
  // earlier builds wrote.
  std::string onnx_sha256 = {};
  // Its checkpoint is kept. nullopt: nothing is kept so, or nothing was evaluated yet.
  std::optional<BestEvaluation> best;
  // nullopt: training does not stop early, or nothing was evaluated yet.
  std::optional<StoppingState> stopping;

  bool operator==(const TrainState&) const = default;
};

// The version this build writes; it reads the one before too. 3 adds spec.
inline constexpr int64_t kStateFormatVersion = 3;

// As JSON; every number comes back exactly.
std::string ToJson(const TrainState& state);

// INVALID_ARGUMENT naming the field for anything that ToJson of its version does not write; FAILED_PRECONDITION for a
// format version that this build does not read.
absl::StatusOr<TrainState> TrainStateFromJson(absl::string_view json);

// What became of the data since a checkpoint was written with `before`, a line each: another number of samples, from
// which epochs follow, another mean or deviation. FAILED_PRECONDITION of class DATA where labels stand for other
// classes now.
absl::StatusOr<std::vector<std::string>> CompareInputs(const InputNotes& before, const InputNotes& now);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAIN_STATE_H_
