#include "server/scheduling/pick.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduling/capability.h"
#include "server/scheduling/device_pool.h"
#include "server/scheduling/preemption.h"
#include "server/scheduling/quota.h"

namespace ampd {
namespace {

// Waiting jobs that devices are reserved for, and times that others are looked for who could stop, in one round.
constexpr int kMaxReservations = 16;
constexpr int kMaxStops = 32;
// Jobs that one which starts is remembered to have overtaken: a record keeps them, and each round looks through them.
constexpr size_t kMaxOvertaken = 32;

class Picker {
 public:
  Picker(const SchedulingSnapshot& snapshot, absl::Time now)
      : snapshot_(snapshot),
        queue_(*snapshot.queue),
        pool_(snapshot, now),
        preemption_(snapshot, &pool_, now),
        quota_(snapshot, now) {
    decision_.now = now;
  }

  Decision Run() &&;

 private:
  // The first job of a line that may start.
  struct Front {
    int cls = 0;
    const QueueClass::Key* key = nullptr;
    const QueueLine* line = nullptr;
    const QueuedJob* job = nullptr;
    // Of its user, when it was put in line.
    double usage = 0;
    // Those behind it in its line wait for a quota.
    bool is_alone = false;
  };

  // What this round did with a line.
  struct LineState {
    // The first so many jobs start; of so many more others stop for them.
    int64_t started = 0;
    int64_t given_room = 0;
    // Its jobs wait, whatever is free.
    bool over_quota = false;
  };

  // How far the round is with a class.
  struct ClassState {
    // Lines from here on are of a lower priority than those in line.
    std::map<QueueClass::Key, QueueLine>::const_iterator next;
    // Of those before it so many may start something yet.
    int64_t open = 0;
    // Its first job waits: so do all others.
    bool waits = false;
  };

  void FillUsage();
  bool ComesBefore(const Front& a, const Front& b) const;
  // Puts the lines of the class's next priority in line, if there is one.
  void Descend(int cls);
  void Push(Front front);
  bool Pop(Front* front);
  // Once something was done with the front: puts the next job of its line in line, or if there is none, and none of the
  // class's other lines are, those of the next priority.
  void Next(const Front& front);
  // Whether its line waits: for a quota, or for what is kept for the first of its user's jobs.
  bool OverQuota(const Front& front);
  // Whether it waits for that, since it might only have started now: later it would be in the way of that job.
  bool KeptFromIt(const Front& front);
  void WaitForQuota(const Front& front, Block block);
  bool Start(const Front& front);
  // Of each line of waiting jobs that could use one of the devices the first, to be compared with `front`.
  std::vector<Front> WaitingFor(const Front& front, const std::vector<int>& devices) const;
  // Of those jobs the ones before `front`, the first kMaxOvertaken.
  std::vector<std::string> Overtaken(const Front& front, const std::vector<int>& devices) const;
  // Whether others stop for it, and the next one of its class may need more of them: else all of its class wait.
  bool Wait(const Front& front);
  bool IsDone() const;
  ClassBlock WhyNot(const Requirement& need) const;
  bool MakeRoom(const Front& front);
  void AddPreemption(const Front& front);

  const SchedulingSnapshot& snapshot_;
  const JobQueue& queue_;
  DevicePool pool_;
  PreemptionPlanner preemption_;
  QuotaLedger quota_;
  Decision decision_;
  // A heap, the first job on top: of each class the lines of its highest priority of which something may start yet. No
  // line comes back within a round, so that each is looked at once, and once more for each start of its user's.
  std::vector<Front> fronts_;
  std::vector<ClassState> classes_;
  std::unordered_map<const QueueLine*, LineState> lines_;
  // Those of which a job waits that is possible.
  std::set<int> waiting_;
  // As the round began, by the queue's index of users.
  std::vector<double> usage_before_;
  int reservations_ = 0;
  int stops_ = 0;
};

void Picker::FillUsage() {
  for (const std::string& user : queue_.users()) {
    const auto usage = snapshot_.usage.find(user);
    decision_.usage.push_back(usage == snapshot_.usage.end() ? 0 : usage->second);
  }
  usage_before_ = decision_.usage;
}

bool Picker::ComesBefore(const Front& a, const Front& b) const {
  if (a.line->priority != b.line->priority) return a.line->priority > b.line->priority;
  if (a.usage != b.usage) return a.usage < b.usage;
  return a.job->submit_sequence < b.job->submit_sequence;
}

void Picker::Descend(int cls) {
  ClassState& state = classes_[static_cast<size_t>(cls)];
  const auto& lines = queue_.classes()[static_cast<size_t>(cls)].lines;
  if (state.next == lines.end()) return;
  const int32_t priority = state.next->second.priority;
  for (; state.next != lines.end() && state.next->second.priority == priority; ++state.next) {
    const auto& [key, line] = *state.next;
    ++state.open;
    Push({cls, &key, &line, line.jobs.front()});
  }
}

void Picker::Push(Front front) {
  front.usage = decision_.usage[static_cast<size_t>(front.line->user)];
  fronts_.push_back(front);
  std::push_heap(fronts_.begin(), fronts_.end(), [&](const Front& a, const Front& b) { return ComesBefore(b, a); });
  ++decision_.lines_looked_at;
}

// What starts makes others come later, never sooner: so the first of the heap, once it is found to be as it was, is the
// first of all.
bool Picker::Pop(Front* front) {
  const auto later = [&](const Front& a, const Front& b) { return ComesBefore(b, a); };
  while (!fronts_.empty()) {
    std::pop_heap(fronts_.begin(), fronts_.end(), later);
    *front = fronts_.back();
    fronts_.pop_back();
    if (classes_[static_cast<size_t>(front->cls)].waits) continue;
    if (front->usage == decision_.usage[static_cast<size_t>(front->line->user)]) return true;
    // Usage is part of the order; only that of users who start something changes.
    Push(*front);
  }
  return false;
}

void Picker::Next(const Front& front) {
  const LineState& state = lines_[front.line];
  const int64_t next = state.started + state.given_room;
  if (!state.over_quota && next < static_cast<int64_t>(front.line->jobs.size())) {
    return Push({front.cls, front.key, front.line, front.line->jobs[static_cast<size_t>(next)]});
  }
  if (--classes_[static_cast<size_t>(front.cls)].open == 0) Descend(front.cls);
}

void Picker::WaitForQuota(const Front& front, Block block) {
  decision_.line_blocks[{front.cls, *front.key}] = std::move(block);
  lines_[front.line].over_quota = true;
}

bool Picker::OverQuota(const Front& front) {
  const Requirement& need = queue_.classes()[static_cast<size_t>(front.cls)].requirement;
  std::optional<Block> block = ampd::OverQuota(snapshot_, quota_.use(), *front.line, need.gpus);
  if (block && pool_.IsPossible(need)) quota_.KeepOverQuota(*front.line, *front.job, need);
  if (!block) block = quota_.PromisedToSweep(*front.line);
  if (!block) block = quota_.KeptFrom(*front.line, need, true);
  if (block) WaitForQuota(front, *std::move(block));
  return block.has_value();
}

bool Picker::KeptFromIt(const Front& front) {
  const Requirement& need = queue_.classes()[static_cast<size_t>(front.cls)].requirement;
  std::optional<Block> block = quota_.KeptFrom(*front.line, need, false);
  if (block) WaitForQuota(front, *std::move(block));
  return block.has_value();
}

bool Picker::Start(const Front& front) {
  const Requirement& need = queue_.classes()[static_cast<size_t>(front.cls)].requirement;
  const std::vector<int> devices = pool_.Place(need);
  if (devices.empty()) return false;
  Assignment assignment{front.job->id, {}, Overtaken(front, devices)};
  for (const int device : devices) {
    assignment.device_ids.push_back(snapshot_.devices[static_cast<size_t>(device)].id);
  }
  pool_.Take(devices, need);
  decision_.start.push_back(std::move(assignment));
  ++lines_[front.line].started;
  quota_.Start(*front.line, need);
  decision_.usage[static_cast<size_t>(front.line->user)] +=
      absl::ToDoubleSeconds(snapshot_.policy.start_charge) * need.gpus;
  return true;
}

// By the usage before this round: what starts in it puts jobs behind `front` only after devices were kept for them.
// Those of its own user stand in line as they were submitted.
std::vector<Picker::Front> Picker::WaitingFor(const Front& front, const std::vector<int>& devices) const {
  std::vector<Front> waiting;
  for (const int cls : waiting_) {
    const QueueClass& of = queue_.classes()[static_cast<size_t>(cls)];
    const auto could_use = [&](int device) { return pool_.IsUsable(device, of.requirement); };
    if (std::none_of(devices.begin(), devices.end(), could_use)) continue;
    for (const auto& [key, line] : of.lines) {
      const auto found = lines_.find(&line);
      const LineState state = found == lines_.end() ? LineState() : found->second;
      const double usage = line.user == front.line->user ? front.usage : usage_before_[static_cast<size_t>(line.user)];
      // Of a line that waits for a quota those that others stop for wait for devices alone.
      const int64_t count = state.over_quota ? state.given_room : 1;
      for (int64_t i = state.started; i < state.started + count && i < static_cast<int64_t>(line.jobs.size()); ++i) {
        waiting.push_back({cls, &key, &line, line.jobs[static_cast<size_t>(i)], usage, state.over_quota});
      }
    }
  }
  return waiting;
}

// Not only those that devices are reserved for: each is the first in line some day.
std::vector<std::string> Picker::Overtaken(const Front& front, const std::vector<int>& devices) const {
  const auto later = [&](const Front& a, const Front& b) { return ComesBefore(b, a); };
  std::vector<Front> waiting = WaitingFor(front, devices);
  std::make_heap(waiting.begin(), waiting.end(), later);
  std::vector<std::string> overtaken;
  while (!waiting.empty() && overtaken.size() < kMaxOvertaken && ComesBefore(waiting.front(), front)) {
    std::pop_heap(waiting.begin(), waiting.end(), later);
    Front& first = waiting.back();
    overtaken.push_back(first.job->id);
    const auto& jobs = first.line->jobs;
    const auto next = std::upper_bound(jobs.begin(), jobs.end(), first.job, [](const QueuedJob* a, const QueuedJob* b) {
      return a->submit_sequence < b->submit_sequence;
    });
    if (first.is_alone || next == jobs.end()) {
      waiting.pop_back();
    } else {
      first.job = *next;
      std::push_heap(waiting.begin(), waiting.end(), later);
    }
  }
  return overtaken;
}

ClassBlock Picker::WhyNot(const Requirement& need) const {
  ClassBlock block;
  for (const int device : pool_.roomy()) {
    if (!pool_.IsOpen(device, need) || !pool_.HasRoom(device, need)) continue;
    ++block.free;
    if (block.kept_for.empty()) block.kept_for = pool_.slots()[static_cast<size_t>(device)].reserved_by;
  }
  return block;
}

// What it waits for is the end of jobs that stop already.
void Picker::AddPreemption(const Front& front) {
  const std::vector<std::string>& stopping = preemption_.stopping();
  const auto is_for_another = [&](const RunningJob& running) {
    return !running.stops_for.empty() && std::find(stopping.begin(), stopping.end(), running.id) != stopping.end();
  };
  const bool preempted = (!decision_.preempt.empty() && decision_.preempt.back().for_job == front.job->id) ||
                         std::any_of(snapshot_.running.begin(), snapshot_.running.end(), is_for_another);
  decision_.job_blocks[front.job->id] = {
      preempted ? v1::Job::PREEMPTION : v1::Job::RESOURCES,
      absl::StrCat(absl::StrJoin(stopping, ", "), stopping.size() == 1 ? " stops" : " stop",
                   preempted ? " for a job of this queue, and it is next" : ", and it is next")};
}

bool Picker::MakeRoom(const Front& front) {
  const Requirement& need = queue_.classes()[static_cast<size_t>(front.cls)].requirement;
  if (++stops_ > kMaxStops || !preemption_.MakeRoom(*front.job, need, &decision_.preempt)) return false;
  AddPreemption(front);
  return true;
}

bool Picker::Wait(const Front& front) {
  const Requirement& need = queue_.classes()[static_cast<size_t>(front.cls)].requirement;
  ClassBlock block = WhyNot(need);
  if (block.free > 0) decision_.class_blocks[front.cls] = std::move(block);
  // It may wait for days, and others must not lose their reservations to it.
  if (!pool_.IsPossible(need)) return false;
  waiting_.insert(front.cls);
  quota_.KeepWaiting(*front.line, *front.job, need);
  bool makes_room = MakeRoom(front);
  if (!makes_room && reservations_ < kMaxReservations) {
    ++reservations_;
    pool_.Reserve(*front.job, need);
    makes_room = MakeRoom(front);
  }
  if (!makes_room) return false;
  quota_.KeepPromised(*front.line, *front.job, need);
  ++lines_[front.line].given_room;
  return true;
}

// Nothing starts, and nobody stops, any more.
bool Picker::IsDone() const { return pool_.roomy().empty() && stops_ >= kMaxStops; }

Decision Picker::Run() && {
  FillUsage();
  decision_.draining = snapshot_.draining;
  decision_.no_space = snapshot_.no_space;
  const bool starts = !snapshot_.draining && snapshot_.no_space.empty();
  for (const QueueClass& cls : queue_.classes()) classes_.push_back({cls.lines.begin()});
  for (size_t cls = 0; cls < classes_.size() && starts; ++cls) Descend(static_cast<int>(cls));
  Front front;
  while (!IsDone() && Pop(&front)) {
    if (OverQuota(front) || Start(front) || KeptFromIt(front) || Wait(front)) {
      Next(front);
    } else {
      classes_[static_cast<size_t>(front.cls)].waits = true;
    }
  }
  for (const DevicePool::Slot& slot : pool_.slots()) decision_.free_at.push_back(slot.free_at);
  decision_.quota_use = quota_.use();
  return std::move(decision_);
}

// Of those that it can run on; empty: none.
DeviceSet SmallerThan(int64_t bytes, const std::vector<DeviceState>& devices, const Requirement& need) {
  DeviceSet smaller;
  for (size_t i = 0; i < devices.size() && i < need.usable.size(); ++i) {
    if (!need.usable[i] || devices[i].memory_bytes <= 0 || bytes <= devices[i].memory_bytes) continue;
    smaller.resize(need.usable.size(), false);
    smaller[i] = true;
  }
  return smaller;
}

// Some group has as many devices that are large enough as it needs.
bool FitsSomewhere(const std::vector<DeviceState>& devices, const Requirement& need) {
  std::unordered_map<int, int> fit;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (need.Fits(i) && ++fit[devices[i].group] >= need.gpus) return true;
  }
  return false;
}

}  // namespace

void MarkTooSmall(const std::vector<DeviceState>& devices, Requirement* need) {
  need->too_small.clear();
  if (need->share) return;
  need->too_small = SmallerThan(need->memory_bytes, devices, *need);
  if (need->too_small.empty() || FitsSomewhere(devices, *need)) return;
  const auto least = static_cast<int64_t>(kLeastOfPlan * static_cast<double>(need->memory_bytes));
  need->too_small = SmallerThan(least, devices, *need);
}

bool CheckpointFits(const std::optional<absl::Duration>& checkpoint_time, absl::Duration stop_grace) {
  return !checkpoint_time || 1.5 * *checkpoint_time <= stop_grace;
}

Decision Pick(const SchedulingSnapshot& snapshot, absl::Time now) { return Picker(snapshot, now).Run(); }

}  // namespace ampd
