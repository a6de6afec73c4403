#include "engine/train/comparison.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/bench_cell.h"
#include "engine/train/failure.h"
#include "engine/train/step_flops.h"

namespace ampd::train {
namespace {

class ModeContender : public Contender {
 public:
  ModeContender(v1::PrecisionSpec::Mode mode, const ResolvedJobSpec& spec, const TrainingData& data,
                const ComparisonOptions& options)
      : mode_(mode), spec_(spec), data_(data), options_(options) {}

  absl::Status Plan() override {
    // Planning a batch that large, for the loader to refuse it, would take long.
    const absl::Status fills = data::CheckFills(data_.train().info(), options_.batch_size);
    if (!fills.ok()) return DataError(fills, "data.train");
    AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec own, InMode(spec_, mode_, options_.batch_size));
    AMPD_ASSIGN_OR_RETURN(run_, MeasuredRun::Plan(own, &data_, options_.trainer));
    return absl::OkStatus();
  }
  int64_t bytes() const override { return run_->bytes(); }
  const runtime::Memory& memory() const override { return *run_->plan().backend->memory(); }
  absl::Status Load() override { return run_->Load(); }
  void Unload() override { run_.reset(); }

  absl::Status Advance() override {
    if (!options_.applied_steps) return run_->Advance(options_.warmup_steps + options_.steps - attempted());
    const int64_t skipped = attempted() - run_->applied();
    if (skipped > options_.steps) {
      return WithFailureClass(absl::AbortedError(absl::StrCat(skipped, " of ", attempted(), " steps were skipped")),
                              v1::Failure::DIVERGED);
    }
    return run_->Advance(options_.steps - run_->applied());
  }

  bool done() const override {
    return options_.applied_steps ? run_->applied() >= options_.steps
                                  : attempted() >= options_.warmup_steps + options_.steps;
  }

  absl::Status Finish(v1::BenchCell* cell) override {
    cell->set_peak_memory_bytes(run_->device_bytes());
    FillSpeed(cell);
    FillLoss(cell);
    if (!options_.underflow || mode_ != v1::PrecisionSpec::FP16) return absl::OkStatus();
    const absl::StatusOr<absl::optional<double>> share = run_->UnderflowShare();
    if (!share.ok()) return IsOfTheCell(share.status()) ? absl::OkStatus() : share.status();
    if (share->has_value()) cell->set_underflow_share(**share);
    return absl::OkStatus();
  }

 private:
  int64_t attempted() const { return static_cast<int64_t>(run_->steps().size()); }

  // Those that count, without the first `skip`.
  std::vector<MeasuredStep> StepsAfter(int64_t skip) const {
    std::vector<MeasuredStep> steps;
    for (const MeasuredStep& step : run_->steps()) {
      if (options_.applied_steps && !step.applied) continue;
      if (skip-- <= 0) steps.push_back(step);
    }
    return steps;
  }
  std::vector<MeasuredStep> TimedSteps() const {
    return StepsAfter(options_.applied_steps ? options_.steps / 5 : options_.warmup_steps);
  }

  void FillSpeed(v1::BenchCell* cell) const {
    std::vector<double> seconds;
    double cpu = 0, wall = 0;
    for (const MeasuredStep& step : TimedSteps()) {
      seconds.push_back(step.seconds);
      cpu += step.cpu_seconds;
      wall += step.wall_seconds;
    }
    FillTimes(seconds, StepFlops(run_->plan(), run_->train()), options_.trainer.device_model, cell);
    if (memory().on_host() && wall > 0) {
      cell->set_device_utilization(std::min(1.0, cpu / wall / std::max(1, options_.trainer.threads)));
    }
  }

  void FillLoss(v1::BenchCell* cell) const {
    double sum = 0;
    int64_t count = 0;
    for (const MeasuredStep& step : options_.applied_steps ? StepsAfter(options_.steps / 2) : TimedSteps()) {
      // A loss that is not finite is a skipped step's, or none; the others say how the training goes.
      if (!std::isfinite(step.loss)) continue;
      sum += step.loss;
      ++count;
    }
    if (count > 0) cell->set_loss(sum / static_cast<double>(count));
    const auto skipped = [](const MeasuredStep& step) { return !step.applied; };
    cell->set_steps_skipped(std::count_if(run_->steps().begin(), run_->steps().end(), skipped));
  }

  const v1::PrecisionSpec::Mode mode_;
  const ResolvedJobSpec& spec_;
  const TrainingData& data_;
  const ComparisonOptions& options_;
  std::unique_ptr<MeasuredRun> run_;
};

}  // namespace

absl::StatusOr<std::vector<v1::BenchCell>> CompareModes(const ResolvedJobSpec& spec, const TrainingData& data,
                                                        const ComparisonOptions& options) {
  std::vector<std::unique_ptr<Contender>> contenders;
  std::vector<v1::BenchCell> cells;
  for (const v1::PrecisionSpec::Mode mode : options.modes) {
    contenders.push_back(std::make_unique<ModeContender>(mode, spec, data, options));
    cells.emplace_back();
    cells.back().set_mode(mode);
    cells.back().set_batch_size(options.batch_size);
  }
  AMPD_RETURN_IF_ERROR(MeasureInTurn(contenders, options.turns, &cells));
  return cells;
}

}  // namespace ampd::train
