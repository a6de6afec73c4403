#include "engine/train/benchmark.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/train/bench_cell.h"
#include "engine/train/comparison.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

std::string Names(const std::vector<PrecisionSpec::Mode>& modes) {
  return absl::StrJoin(modes, ", ",
                       [](std::string* out, PrecisionSpec::Mode mode) { out->append(PrecisionSpec::Mode_Name(mode)); });
}

}  // namespace

Benchmark::Benchmark(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer)
    : spec_(spec),
      options_(options),
      reporter_(spec.proto().report(), {}, 0, observer),
      modes_(ModesToMeasure(spec.proto().bench().modes(), options.device_model, kBenchModes)) {
  if (bench().has_sweep()) sizes_ = SizesOf(bench().sweep());
}

void Benchmark::Request(Command command) {
  if (command == Command::kCheckpointAndStop) stop_requested_ = true;
}

int64_t Benchmark::Sizes() const {
  return bench().has_sweep() ? static_cast<int64_t>(sizes_.size()) : bench().batch_sizes_size();
}

absl::Status Benchmark::Open() {
  if (bench().has_sweep()) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec plain,
                        InMode(spec_, PrecisionSpec::FP32, spec_.proto().train().batch_size()));
  AMPD_ASSIGN_OR_RETURN(data_,
                        TrainingData::Open(plain, options_.data_roots, options_.checkpoint_dir, options_.threads));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Benchmark::FirstSize() {
  const auto modes = static_cast<int64_t>(modes_.size());
  const int64_t size = std::min(options_.last_reported_step / modes, Sizes());
  if (options_.last_reported_step == size * modes) return size;
  v1::JobEvent event;
  event.mutable_rewound()->set_to_step(size * modes);
  event.mutable_rewound()->set_reason("modes of one size are measured together");
  AMPD_RETURN_IF_ERROR(reporter_.Emit(std::move(event)));
  return size;
}

absl::StatusOr<Outcome> Benchmark::Run() {
  AMPD_RETURN_IF_ERROR(Open());
  AMPD_ASSIGN_OR_RETURN(int64_t size, FirstSize());
  for (; size < Sizes(); ++size) {
    const absl::Status status = Measure(size);
    if (absl::IsCancelled(status) && stop_requested_) return Outcome::kStopped;
    AMPD_RETURN_IF_ERROR(status);
  }
  return Outcome::kCompleted;
}

absl::Status Benchmark::Measure(int64_t size) {
  AMPD_ASSIGN_OR_RETURN(std::vector<v1::BenchCell> cells, CellsOf(size));
  if (data_ != nullptr) {
    for (v1::CorruptSample& sample : data_->TakeCorrupt()) {
      v1::JobEvent event;
      *event.mutable_corrupt_sample() = std::move(sample);
      AMPD_RETURN_IF_ERROR(reporter_.Emit(std::move(event)));
    }
  }
  const auto modes = static_cast<int64_t>(modes_.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    v1::JobEvent event;
    cells[i].set_index(size * modes + static_cast<int64_t>(i) + 1);
    cells[i].set_total(Sizes() * modes);
    *event.mutable_bench_cell() = std::move(cells[i]);
    AMPD_RETURN_IF_ERROR(reporter_.Emit(std::move(event)));
  }
  return absl::OkStatus();
}

TurnOptions Benchmark::Turns(const std::string& what) {
  TurnOptions turns;
  turns.what = what;
  turns.stop = [this] { return stop_requested_.load(); };
  turns.on_step = [this] { step_.fetch_add(1, std::memory_order_relaxed); };
  turns.warn = [this](const std::string& text) { return reporter_.Log(v1::LogLine::WARNING, text); };
  turns.one_at_a_time = spec_.proto().resources().share();
  return turns;
}

absl::StatusOr<std::vector<v1::BenchCell>> Benchmark::CellsOf(int64_t size) {
  const int64_t steps = bench().steps(), warmup = bench().warmup_steps();
  const auto announce = [&](const std::string& what) {
    return reporter_.Log(v1::LogLine::INFO, absl::StrCat("measuring ", what, ": ", Names(modes_), ", ", warmup, " + ",
                                                         steps, " steps each"));
  };
  if (bench().has_sweep()) {
    const SweepSize& of = sizes_[static_cast<size_t>(size)];
    AMPD_RETURN_IF_ERROR(announce(of.Name()));
    return MeasureSize(of, {options_, modes_, warmup, steps, Turns(of.Name())});
  }
  const int64_t batch = bench().batch_sizes(static_cast<int>(size));
  const std::string what = absl::StrCat("batch ", batch);
  AMPD_RETURN_IF_ERROR(announce(what));
  ComparisonOptions options{.trainer = options_,
                            .batch_size = batch,
                            .modes = modes_,
                            .warmup_steps = warmup,
                            .steps = steps,
                            .underflow = true,
                            .turns = Turns(what)};
  return CompareModes(spec_, *data_, options);
}

}  // namespace ampd::train
