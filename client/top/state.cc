#include "client/top/state.h"

#include <algorithm>
#include <tuple>

#include "client/exit_code.h"
#include "client/output/event_line.h"

namespace ampd::client {
namespace {

constexpr size_t kMostPoints = 4096;
constexpr size_t kMostNotes = 20;

int Rank(v1::Job::State state) {
  if (state == v1::Job::QUEUED) return 1;
  if (state == v1::Job::PAUSED) return 2;
  return IsTerminal(state) ? 3 : 0;
}

}  // namespace

void TopHistory::Observe(const v1::JobEvent& event) {
  if (event.sequence() <= sequence_) return;
  sequence_ = event.sequence();
  progress_.Observe(event);
  if (event.has_rewound()) {
    while (!points_.empty() && points_.back().step > event.rewound().to_step()) points_.pop_back();
  }
  if (!event.has_step()) {
    notes_.push_back(EventLine(event));
    if (notes_.size() > kMostNotes) notes_.pop_front();
    return;
  }
  const v1::StepReport& step = event.step();
  if (step.phases().empty()) return;
  int64_t skipped = 0;
  for (const v1::PhaseReport& phase : step.phases()) skipped += phase.steps_skipped();
  const v1::PhaseReport& first = step.phases(0);
  const bool is_idle = progress_.idle().Has(first.name()) && !points_.empty();
  points_.push_back({step.last_step(), is_idle ? points_.back().loss : first.loss(), first.loss_scale(),
                     step.samples_per_second(), !points_.empty() && skipped > skipped_});
  skipped_ = skipped;
  if (points_.size() > kMostPoints) points_.pop_front();
}

void SortJobs(std::vector<v1::Job>* jobs) {
  std::sort(jobs->begin(), jobs->end(), [](const v1::Job& a, const v1::Job& b) {
    const auto key = [](const v1::Job& job) {
      const int place = job.state() == v1::Job::QUEUED ? job.queue_position() : 0;
      return std::make_tuple(Rank(job.state()), place);
    };
    if (key(a) != key(b)) return key(a) < key(b);
    // Ids sort by the time of submission.
    return a.id() > b.id();
  });
}

}  // namespace ampd::client
