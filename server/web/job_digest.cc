#include "server/web/job_digest.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "engine/core/status.h"
#include "proto/spec/limits.h"

namespace ampd {
namespace {

constexpr int kAtOnce = 4;
constexpr int kPageEvents = 2000;
constexpr size_t kPageBytes = 1 << 20;
constexpr uint64_t kPayloads = 64;

SeriesRow RowOf(const v1::StepReport& report) {
  SeriesRow row;
  row.first_step = std::max<int64_t>(1, report.first_step());
  row.last_step = std::max(row.first_step, report.last_step());
  return row;
}

}  // namespace

Series* JobDigest::PhaseOf(const std::string& name) {
  for (auto& [known, series] : phases_) {
    if (known == name) return &series;
  }
  return phases_.size() < kMaxPhaseNames ? &phases_.emplace_back(name, Series()).second : nullptr;
}

void JobDigest::AddReport(const v1::StepReport& report) {
  SeriesRow row = RowOf(report);
  for (const v1::PhaseReport& phase : report.phases()) {
    SeriesRow phase_row = row;
    phase_row.skipped_total = phase.steps_skipped();
    phase_row.cells[kLoss].Add(phase.loss());
    phase_row.cells[kLossScale].Add(phase.loss_scale());
    phase_row.cells[kLearningRate].Add(phase.learning_rate());
    phase_row.cells[kGradientNorm].Add(phase.gradient_norm());
    if (Series* series = PhaseOf(phase.name())) series->Add(phase_row);
  }
  row.cells[kSamplesPerSecond].Add(report.samples_per_second());
  if (report.has_step_seconds()) row.cells[kStepSeconds].Add(report.step_seconds());
  row.cells[kInputWaitSeconds].Add(report.input_wait_seconds());
  if (report.has_model_flops_utilization()) row.cells[kFlopsUtilization].Add(report.model_flops_utilization());
  throughput_.Add(row);
  if (throughput_.size() * (phases_.size() + 1) > kMaxRows) Coarsen();
}

void JobDigest::Coarsen() {
  while (true) {
    throughput_.Coarsen(grain_);
    for (auto& [name, series] : phases_) series.Coarsen(grain_);
    // Rows of `grain_` reports are merged further only once there are too many of those.
    if (throughput_.size() * (phases_.size() + 1) <= kMaxRows / 2) return;
    grain_ *= 2;
  }
}

void JobDigest::Rewind(int64_t to_step) {
  for (auto& [name, series] : phases_) series.Rewind(to_step);
  throughput_.Rewind(to_step);
  while (!evaluations_.empty() && evaluations_.back().step > to_step) evaluations_.pop_back();
}

void JobDigest::Add(const v1::JobEvent& event) {
  sequence_ = event.sequence();
  if (event.has_step()) {
    total_steps_ = event.step().total_steps();
    return AddReport(event.step());
  }
  if (event.has_rewound()) Rewind(event.rewound().to_step());
  if (event.has_evaluation()) {
    const v1::Evaluation& evaluation = event.evaluation();
    while (!evaluations_.empty() && evaluations_.back().step >= evaluation.step()) evaluations_.pop_back();
    evaluations_.push_back(
        {evaluation.step(), evaluation.epoch(), {evaluation.metrics().begin(), evaluation.metrics().end()}});
    if (evaluations_.size() > kMaxEvaluations) {
      for (size_t i = 0; 2 * i + 1 < evaluations_.size(); ++i) evaluations_[i] = std::move(evaluations_[2 * i + 1]);
      evaluations_.resize(evaluations_.size() / 2);
    }
  }
  others_.push_back(event.sequence() * kPayloads + event.payload_case());
  if (others_.size() > kMaxOthers) others_.erase(others_.begin(), others_.begin() + kMaxOthers / 2);
}

std::vector<uint64_t> JobDigest::Newest(const std::vector<v1::JobEvent::PayloadCase>& kinds, size_t count) const {
  std::vector<uint64_t> sequences;
  for (auto other = others_.rbegin(); other != others_.rend() && sequences.size() < count; ++other) {
    const auto kind = static_cast<v1::JobEvent::PayloadCase>(*other % kPayloads);
    if (absl::c_linear_search(kinds, kind)) sequences.push_back(*other / kPayloads);
  }
  absl::c_reverse(sequences);
  return sequences;
}

size_t JobDigest::Bytes() const {
  const size_t rows = throughput_.size() * (phases_.size() + 1);
  // A metric of an evaluation is a node of a map, and its name.
  size_t metrics = 0;
  for (const EvaluationPoint& evaluation : evaluations_) metrics += evaluation.metrics.size();
  return sizeof(*this) + rows * sizeof(SeriesRow) + evaluations_.size() * sizeof(EvaluationPoint) + metrics * 96 +
         others_.size() * sizeof(others_[0]);
}

std::shared_ptr<DigestCache::Entry> DigestCache::Take(const std::string& job_id) {
  const MutexLock lock(&mutex_);
  while (busy_ >= kAtOnce) changed_.Wait(&mutex_);
  ++busy_;
  const auto found = absl::c_find_if(entries_, [&](const auto& entry) { return entry->job_id == job_id; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  entries_.push_front(std::make_shared<Entry>(job_id));
  return entries_.front();
}

void DigestCache::GiveBack(const std::shared_ptr<Entry>& entry, size_t bytes) {
  {
    const MutexLock lock(&mutex_);
    --busy_;
    // Unless it was forgotten meanwhile.
    if (absl::c_linear_search(entries_, entry)) {
      bytes_ += bytes - entry->bytes;
      entry->bytes = bytes;
    }
    while (bytes_ > max_bytes_ && entries_.size() > 1) {
      bytes_ -= entries_.back()->bytes;
      entries_.pop_back();
    }
  }
  changed_.NotifyAll();
}

absl::Status DigestCache::Update(const std::string& job_id, JobDigest& digest) {
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const EventPage page, log_->Read(job_id, digest.sequence(), kPageEvents, kPageBytes));
    for (const v1::JobEvent& event : page.events) digest.Add(event);
    if (page.events.empty() || digest.sequence() >= page.last_sequence) return absl::OkStatus();
  }
}

absl::Status DigestCache::Look(const std::string& job_id, absl::FunctionRef<void(const JobDigest&)> look) {
  const std::shared_ptr<Entry> entry = Take(job_id);
  absl::Status status;
  size_t bytes = 0;
  {
    const MutexLock lock(&entry->mutex);
    status = Update(job_id, entry->digest);
    bytes = entry->digest.Bytes();
    if (status.ok()) look(entry->digest);
  }
  GiveBack(entry, bytes);
  return status;
}

}  // namespace ampd
