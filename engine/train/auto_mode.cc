#include "engine/train/auto_mode.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/train/bench_cell.h"
#include "engine/train/checkpoint.h"
#include "engine/train/comparison.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "engine/train/sha256.h"
#include "engine/train/spec_configs.h"
#include "engine/train/training_data.h"
#include "google/protobuf/util/json_util.h"
#include "proto/spec/text.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

constexpr char kFile[] = "mode_chosen.json";
constexpr int64_t kMaxFileBytes = 1 << 20;

bool HasFiniteLoss(const v1::BenchCell& cell) { return cell.has_loss() && std::isfinite(cell.loss()); }

bool IsNear(const v1::BenchCell& cell, const v1::BenchCell& fp32, double tolerance) {
  return HasFiniteLoss(cell) && HasFiniteLoss(fp32) && cell.loss() - fp32.loss() <= tolerance * std::fabs(fp32.loss());
}

double SpeedUp(const v1::BenchCell& cell, const v1::BenchCell& fp32) {
  return cell.step_seconds() > 0 ? fp32.step_seconds() / cell.step_seconds() : 0;
}

// Other work on the machine makes steps longer, never shorter: what is faster is so at its best moments too.
bool IsClearlyFaster(const v1::BenchCell& cell, const v1::BenchCell& fp32) {
  return SpeedUp(cell, fp32) >= kLeastSpeedUp && cell.step_seconds_p10() * kLeastSpeedUp <= fp32.step_seconds_p10();
}

// "FP16: 1.62 times as fast as FP32, its loss 0.4% above"
std::string Sentence(const v1::BenchCell& cell, const v1::BenchCell& fp32, double tolerance) {
  const std::string name = PrecisionSpec::Mode_Name(cell.mode());
  if (cell.has_failure()) {
    return absl::StrCat(name, ": ", v1::Failure::Class_Name(cell.failure().class_()), ", ", cell.failure().message());
  }
  std::string text = absl::StrFormat("%s: %.2f times as fast as FP32", name, SpeedUp(cell, fp32));
  if (!HasFiniteLoss(cell) || !HasFiniteLoss(fp32)) return text + ", no finite loss to compare";
  const double gap = fp32.loss() == 0 ? 0 : (cell.loss() - fp32.loss()) / std::fabs(fp32.loss());
  absl::StrAppendFormat(&text, ", its loss %.2g%% %s", 100 * std::fabs(gap), gap >= 0 ? "above" : "below");
  if (!IsNear(cell, fp32, tolerance)) {
    absl::StrAppendFormat(&text, ", which is more than %g%%", 100 * tolerance);
  } else if (SpeedUp(cell, fp32) >= kLeastSpeedUp && !IsClearlyFaster(cell, fp32)) {
    absl::StrAppend(&text, ", but no faster in either's best steps");
  }
  return text;
}

// "BF16: 1.2 ms a step, loss 0.41"
std::string SentenceAlone(const v1::BenchCell& cell) {
  const std::string name = PrecisionSpec::Mode_Name(cell.mode());
  if (cell.has_failure()) return Sentence(cell, cell, 0);
  if (!HasFiniteLoss(cell)) return absl::StrCat(name, ": no finite loss");
  return absl::StrFormat("%s: %.3g ms a step, loss %.3g", name, 1e3 * cell.step_seconds(), cell.loss());
}

// What the job's checkpoints tell, where the decision itself is lost with the folder that it was in: the mirror has
// copies of checkpoints alone. Another choice would leave them to nobody.
absl::StatusOr<absl::optional<v1::ModeChosen>> ModeOfCheckpoints(const std::string& folder, const std::string& mirror) {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<TrainState> state, FindTrainState(folder, mirror));
  if (!state.has_value() || state->spec.empty()) return absl::optional<v1::ModeChosen>();
  const absl::StatusOr<ResolvedJobSpec> spec = ReadHashedSpec(state->spec);
  if (!spec.ok() || spec->proto().precision().mode() == PrecisionSpec::AUTO) return absl::optional<v1::ModeChosen>();
  v1::ModeChosen chosen;
  chosen.set_mode(spec->proto().precision().mode());
  chosen.set_reason("its checkpoints are in this mode; the comparison that chose it is lost");
  return absl::optional<v1::ModeChosen>(std::move(chosen));
}

}  // namespace

absl::optional<v1::ModeChosen> ChooseWithoutFp32(const std::vector<v1::BenchCell>& cells) {
  const v1::BenchCell* best = nullptr;
  std::vector<std::string> sentences = {"FP32 does not fit in memory, so that no loss could be compared with its own"};
  v1::ModeChosen chosen;
  for (const v1::BenchCell& cell : cells) {
    *chosen.add_cells() = cell;
    sentences.push_back(SentenceAlone(cell));
    if (cell.has_failure() || !HasFiniteLoss(cell)) continue;
    if (best == nullptr || cell.step_seconds() < best->step_seconds()) best = &cell;
  }
  if (best == nullptr) return absl::nullopt;
  chosen.set_mode(best->mode());
  chosen.set_reason(absl::StrJoin(sentences, "; "));
  return chosen;
}

v1::ModeChosen ChooseMode(const std::vector<v1::BenchCell>& cells, double tolerance) {
  const v1::BenchCell& fp32 = cells.front();
  const v1::BenchCell* best = &fp32;
  std::vector<std::string> sentences;
  v1::ModeChosen chosen;
  for (const v1::BenchCell& cell : cells) {
    *chosen.add_cells() = cell;
    if (&cell == &fp32) continue;
    sentences.push_back(Sentence(cell, fp32, tolerance));
    if (cell.has_failure() || !IsNear(cell, fp32, tolerance) || !IsClearlyFaster(cell, fp32)) continue;
    if (cell.step_seconds() < best->step_seconds()) best = &cell;
  }
  chosen.set_mode(best->mode());
  if (best == &fp32) sentences.insert(sentences.begin(), "no mode is faster than FP32 with a loss as good");
  chosen.set_reason(absl::StrJoin(sentences, "; "));
  return chosen;
}

absl::Status SaveChosenMode(const std::string& folder, const v1::ModeChosen& chosen) {
  AMPD_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string path = absl::StrCat(folder, "/", kFile), aside = absl::StrCat(path, ".new");
  const std::string json = ToJson(chosen, JsonStyle::kCompact);
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(aside));
  AMPD_RETURN_IF_ERROR(file.Append(absl::StrCat(Sha256Hex(json), "\n", json)));
  AMPD_RETURN_IF_ERROR(file.Close());
  AMPD_RETURN_IF_ERROR(RenameOrSwap(aside, path));
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  return SyncFolder(folder);
}

absl::StatusOr<absl::optional<v1::ModeChosen>> LoadChosenMode(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kFile);
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxFileBytes);
  if (absl::IsNotFound(bytes.status())) return absl::optional<v1::ModeChosen>();
  AMPD_RETURN_IF_ERROR(bytes.status());
  const size_t line = bytes->find('\n');
  v1::ModeChosen chosen;
  const bool intact = line != std::string::npos && bytes->substr(0, line) == Sha256Hex(bytes->substr(line + 1)) &&
                      google::protobuf::util::JsonStringToMessage(bytes->substr(line + 1), &chosen).ok();
  if (!intact) return absl::DataLossError(absl::StrCat(path, ": is damaged; it says in which mode the job trains"));
  return absl::optional<v1::ModeChosen>(std::move(chosen));
}

absl::StatusOr<ResolvedJobSpec> InChosenMode(const ResolvedJobSpec& spec, PrecisionSpec::Mode mode) {
  v1::JobSpec changed = spec.proto();
  changed.mutable_precision()->set_mode(mode);
  changed.mutable_precision()->clear_auto_();
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec resolved, ResolveJobSpec(std::move(changed)));
  return resolved;
}

AutoTrainer::AutoTrainer(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer)
    : spec_(spec), options_(options), observer_(observer), reporter_(spec.proto().report(), {}, 0, observer) {}

void AutoTrainer::Request(Command command) {
  const MutexLock lock(&mutex_);
  if (command == Command::kCheckpointAndStop) stop_requested_ = true;
  if (trainer_ != nullptr) {
    trainer_->Request(command);
  } else {
    pending_.push_back(command);
  }
}

void AutoTrainer::Profile(ProfileRequest request) {
  const MutexLock lock(&mutex_);
  if (trainer_ != nullptr) {
    trainer_->Profile(request);
  } else if (pending_profile_.steps == 0) {
    pending_profile_ = request;
  }
}

absl::Status AutoTrainer::DropHeldCheckpoint() {
  const MutexLock lock(&mutex_);
  return trainer_ == nullptr ? absl::OkStatus() : trainer_->DropHeldCheckpoint();
}

absl::Status AutoTrainer::LeaveCheckpoint() {
  const MutexLock lock(&mutex_);
  return trainer_ == nullptr ? absl::OkStatus() : trainer_->LeaveCheckpoint();
}

int64_t AutoTrainer::step() const {
  const MutexLock lock(&mutex_);
  return trainer_ == nullptr ? 0 : trainer_->step();
}

int64_t AutoTrainer::evaluated_samples() const {
  const MutexLock lock(&mutex_);
  return trainer_ == nullptr ? 0 : trainer_->evaluated_samples();
}

absl::StatusOr<std::vector<v1::BenchCell>> AutoTrainer::Compare() {
  const v1::AutoSpec& choice = spec_.proto().precision().auto_();
  const int64_t batch = spec_.proto().train().batch_size();
  const auto modes = ModesToMeasure(choice.modes(), options_.device_model, kAutoModes);
  const auto name = [](std::string* out, PrecisionSpec::Mode mode) { out->append(PrecisionSpec::Mode_Name(mode)); };
  AMPD_RETURN_IF_ERROR(reporter_.Log(v1::LogLine::INFO, absl::StrCat("AUTO compares ", absl::StrJoin(modes, ", ", name),
                                                                     ", ", choice.steps(), " steps each")));
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec plain, InMode(spec_, PrecisionSpec::FP32, batch));
  AMPD_ASSIGN_OR_RETURN(const auto data,
                        TrainingData::Open(plain, options_.data_roots, options_.checkpoint_dir, options_.threads));
  ComparisonOptions options{
      .trainer = options_, .batch_size = batch, .modes = modes, .steps = choice.steps(), .applied_steps = true};
  options.turns.what = "AUTO";
  options.turns.stop = [this] { return stop_requested_.load(); };
  options.turns.on_step = [] {};
  options.turns.warn = [this](const std::string& text) { return reporter_.Log(v1::LogLine::WARNING, text); };
  options.turns.one_at_a_time = spec_.proto().resources().share();
  return CompareModes(spec_, *data, options);
}

absl::StatusOr<absl::optional<v1::ModeChosen>> AutoTrainer::Choose() {
  AMPD_ASSIGN_OR_RETURN(absl::optional<v1::ModeChosen> chosen, LoadChosenMode(options_.checkpoint_dir));
  if (chosen.has_value()) return chosen;
  // Empty: nobody was told of any.
  if (options_.last_checkpoint != std::string()) {
    AMPD_ASSIGN_OR_RETURN(chosen, ModeOfCheckpoints(options_.checkpoint_dir, options_.mirror_dir));
  }
  if (chosen.has_value()) {
    AMPD_RETURN_IF_ERROR(SaveChosenMode(options_.checkpoint_dir, *chosen));
    return chosen;
  }
  absl::StatusOr<std::vector<v1::BenchCell>> cells = Compare();
  if (absl::IsCancelled(cells.status()) && stop_requested_) return absl::optional<v1::ModeChosen>();
  AMPD_RETURN_IF_ERROR(cells.status());
  const v1::BenchCell& fp32 = cells->front();
  if (!fp32.has_failure()) {
    chosen = ChooseMode(*cells, spec_.proto().precision().auto_().tolerance());
  } else if (fp32.failure().class_() == v1::Failure::OUT_OF_MEMORY) {
    chosen = ChooseWithoutFp32(*cells);
  }
  if (!chosen.has_value()) {
    return WithFailureClass(absl::AbortedError(absl::StrCat("AUTO compares modes with FP32, which cannot train here: ",
                                                            fp32.failure().message())),
                            fp32.failure().class_());
  }
  AMPD_RETURN_IF_ERROR(SaveChosenMode(options_.checkpoint_dir, *chosen));
  return chosen;
}

absl::StatusOr<Trainer*> AutoTrainer::OpenTrainer(PrecisionSpec::Mode mode) {
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, InChosenMode(spec_, mode));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer, Trainer::Create(spec, options_, observer_));
  const MutexLock lock(&mutex_);
  trainer_ = std::move(trainer);
  for (const Command command : pending_) trainer_->Request(command);
  if (pending_profile_.steps > 0) trainer_->Profile(pending_profile_);
  return trainer_.get();
}

std::string AutoTrainer::end_reason() const {
  const MutexLock lock(&mutex_);
  return trainer_ == nullptr ? "" : trainer_->end_reason();
}

absl::StatusOr<Outcome> AutoTrainer::Run() {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<v1::ModeChosen> chosen, Choose());
  if (!chosen.has_value()) return Outcome::kStopped;
  v1::JobEvent event;
  *event.mutable_mode_chosen() = *chosen;
  AMPD_RETURN_IF_ERROR(reporter_.Emit(std::move(event)));
  AMPD_ASSIGN_OR_RETURN(Trainer* const trainer, OpenTrainer(chosen->mode()));
  return trainer->Run();
}

}  // namespace ampd::train
