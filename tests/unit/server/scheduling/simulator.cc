#include "tests/unit/server/scheduling/simulator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

constexpr int kGroupDevices = 16;
// Of the devices of odd groups, and of the others: half as much. Whole GiB.
constexpr int kLargeGib = 32;
constexpr int kUsers = 4;
// All times are whole ticks, so that rounds see several events at once.
constexpr absl::Duration kTick = absl::Seconds(60);
constexpr int kRoundsBetweenDrains = 500;
// Jobs that an assignment names as overtaken.
constexpr size_t kMaxOvertaken = 32;

}  // namespace

Simulator::Simulator(const SimulationOptions& options)
    : options_(options), random_(options.seed), ledger_(absl::Hours(12)), now_(absl::FromUnixSeconds(1'700'000'010)) {
  for (int i = 0; i < options.groups * kGroupDevices; ++i) {
    DeviceState device;
    device.id = absl::StrCat("d", i);
    device.group = i / kGroupDevices;
    device.memory_bytes = device.share_bytes = int64_t{device.group % 2 == 0 ? kLargeGib / 2 : kLargeGib} << 30;
    snapshot_.devices.push_back(std::move(device));
  }
  snapshot_.queue = &queue_;
  snapshot_.policy.stop_grace = kTick * 2;
  snapshot_.policy.max_running_devices_per_user = static_cast<int>(options.groups * kGroupDevices * options.quota);
  MakeJobs();
}

QueuedJob Simulator::MakeJob(int index) {
  const auto chance = [&](double share) { return std::uniform_real_distribution<>(0, 1)(random_) < share; };
  const auto below = [&](int limit) { return std::uniform_int_distribution<>(0, limit - 1)(random_); };
  QueuedJob job;
  job.id = absl::StrCat("j", index);
  job.submit_sequence = index + 1;
  job.user = absl::StrCat("u", std::min(below(kUsers), below(kUsers)));
  job.priority = chance(0.1) ? 5 : chance(0.2) ? -1 : 0;
  Requirement& need = job.requirement;
  need.share = chance(0.2);
  if (need.share) need.memory_bytes = int64_t{1 + below(6)} << 30;
  if (!need.share && chance(0.3)) need.gpus = 2 << below(3);
  need.preemptible = chance(0.3);
  static constexpr int kLimits[] = {300, 1200, 3600};
  if (chance(0.6)) need.max_hold = absl::Seconds(kLimits[below(3)]);
  const size_t devices = snapshot_.devices.size();
  need.usable.assign(devices, true);
  const int first = below(options_.groups);
  if (chance(0.4)) {
    const int second = chance(0.3) ? below(options_.groups) : first;
    for (size_t i = 0; i < devices; ++i) {
      const int group = snapshot_.devices[i].group;
      need.usable[i] = group == first || group == second;
    }
  } else if (need.gpus == 1 && chance(0.05)) {
    need.usable.assign(devices, false);
    need.usable[static_cast<size_t>(below(4) * 5)] = true;
  }
  // One in three knows what it plans, on what is large enough for it somewhere.
  if (!need.share && chance(0.3)) {
    int64_t largest = 0;
    for (size_t i = 0; i < devices; ++i) {
      if (need.usable[i]) largest = std::max(largest, snapshot_.devices[i].memory_bytes >> 30);
    }
    need.memory_bytes = int64_t{1 + below(static_cast<int>(largest))} << 30;
    MarkTooSmall(snapshot_.devices, &need);
  }
  if (chance(0.05)) {
    job.sweep_id = absl::StrCat("s", index / 2000);
    job.sweep_max_parallel = 3;
  }
  if (index > 100 && chance(0.03)) job.waits_for = {absl::StrCat("j", index - 1 - below(100))};
  return job;
}

void Simulator::MakeJobs() {
  double device_seconds = 0;
  for (int i = 0; i < options_.jobs; ++i) {
    SimulatedJob job;
    job.job = MakeJob(i);
    const Requirement& need = job.job.requirement;
    const auto longest =
        need.max_hold == absl::InfiniteDuration() ? int64_t{60} : absl::ToInt64Seconds(need.max_hold) / 60;
    job.left = kTick * static_cast<double>(std::uniform_int_distribution<int64_t>(1, longest)(random_));
    // Of one in ten the checkpoint takes longer than it may.
    job.checkpoint_time = absl::Seconds(i % 10 == 0 ? 120 : 60);
    if (job.checkpoint_time > kTick) job.job.requirement.preemptible = false;
    device_seconds += absl::ToDoubleSeconds(job.left) * need.gpus * (need.share ? 0.25 : 1);
    index_[job.job.id] = i;
    for (const std::string& id : job.job.waits_for) jobs_[static_cast<size_t>(index_.at(id))].dependents.push_back(i);
    jobs_.push_back(std::move(job));
  }
  // Three quarters of what the devices can do: gangs and reservations leave gaps.
  const double horizon = device_seconds / 0.75 / static_cast<double>(snapshot_.devices.size());
  for (int i = 0; i < options_.jobs; ++i) {
    const double place = std::max(0.0, static_cast<double>(i) / options_.jobs - options_.at_once);
    const absl::Time at = now_ + kTick * std::floor(place * horizon / absl::ToDoubleSeconds(kTick));
    jobs_[static_cast<size_t>(i)].submitted = at;
    if (i % 40 == 7) jobs_[static_cast<size_t>(i)].job.not_before = at + kTick * 20;
    Add(at, Event::kSubmit, i);
  }
}

void Simulator::Add(absl::Time at, Event::Kind kind, int job) {
  events_.push({at, order_++, kind, job, kind == Event::kSubmit ? 0 : jobs_[static_cast<size_t>(job)].stops});
}

void Simulator::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = absl::StrCat(absl::FormatTime(now_, absl::UTCTimeZone()), ": ", what);
}

RunningJob* Simulator::FindRunning(const std::string& id) {
  for (RunningJob& running : snapshot_.running) {
    if (running.id == id) return &running;
  }
  return nullptr;
}

void Simulator::Submit(int index) {
  SimulatedJob& job = jobs_[static_cast<size_t>(index)];
  QueuedJob queued = job.job;
  std::erase_if(queued.waits_for,
                [&](const std::string& id) { return jobs_[static_cast<size_t>(index_.at(id))].ended; });
  if (queued.not_before > now_) Add(queued.not_before, Event::kRelease, index);
  queue_.Put(std::move(queued), now_);
}

void Simulator::Release(int index, bool ended) {
  SimulatedJob& job = jobs_[static_cast<size_t>(index)];
  RunningJob* running = FindRunning(job.job.id);
  const auto devices = static_cast<double>(running->devices.size());
  ledger_.Add(job.job.user, devices, running->start, now_);
  figures_.busy += running->share ? 0 : devices * absl::ToDoubleSeconds(now_ - running->start);
  user_devices_[job.job.user] -= static_cast<int>(running->devices.size());
  if (!job.job.sweep_id.empty()) --sweep_running_[job.job.sweep_id];
  const absl::Duration held = now_ - running->start;
  std::swap(*running, snapshot_.running.back());
  snapshot_.running.pop_back();
  if (ended) {
    job.ended = true;
    for (const int dependent : job.dependents) {
      if (queue_.Find(jobs_[static_cast<size_t>(dependent)].job.id) != nullptr) Submit(dependent);
    }
    return;
  }
  // Its checkpoint keeps what it has done.
  job.left -= held;
  if (job.job.requirement.max_hold != absl::InfiniteDuration()) job.job.requirement.max_hold -= held;
  Submit(index);
}

void Simulator::Handle(const Event& event) {
  SimulatedJob& job = jobs_[static_cast<size_t>(event.job)];
  switch (event.kind) {
    case Event::kSubmit:
      return Submit(event.job);
    case Event::kRelease:
      return queue_.Release(now_);
    case Event::kEnd:
      if (event.starts == job.stops) Release(event.job, true);
      return;
    case Event::kStopped:
      if (event.starts != job.stops) return;
      ++job.stops;
      return Release(event.job, false);
  }
}

std::string Simulator::Run() {
  const absl::Time begin = now_;
  while (!events_.empty() && failure_.empty()) {
    now_ = events_.top().at;
    // What was over before it could stop is over.
    while (!events_.empty() && events_.top().at == now_) {
      const Event event = events_.top();
      events_.pop();
      if (!jobs_[static_cast<size_t>(event.job)].ended) Handle(event);
    }
    Round();
  }
  figures_.simulated = now_ - begin;
  figures_.busy /= absl::ToDoubleSeconds(now_ - begin) * static_cast<double>(snapshot_.devices.size());
  if (!failure_.empty()) return failure_;
  for (const SimulatedJob& job : jobs_) {
    if (!job.ended) return absl::StrCat(job.job.id, " never ended");
  }
  return queue_.size() == 0 ? "" : "the queue is not empty";
}

void Simulator::Round() {
  ++figures_.rounds;
  figures_.longest_queue = std::max(figures_.longest_queue, queue_.size());
  // One device at a time; none in the end, where a job may need that very one.
  if (figures_.rounds % kRoundsBetweenDrains == 0 || events_.empty()) {
    for (DeviceState& device : snapshot_.devices) device.held_back = v1::Job::QUEUE_REASON_UNSPECIFIED;
    if (!events_.empty()) snapshot_.devices[random_() % snapshot_.devices.size()].held_back = v1::Job::GPU_DRAINED;
    head_.reset();
  }
  snapshot_.usage.clear();
  for (int user = 0; user < kUsers; ++user) {
    const std::string name = absl::StrCat("u", user);
    snapshot_.usage[name] = ledger_.At(name, now_);
  }
  for (const RunningJob& running : snapshot_.running) {
    snapshot_.usage[running.user] +=
        static_cast<double>(running.devices.size()) * DecayedSeconds(running.start, now_, now_, ledger_.half_life());
  }
  std::vector<double> usage;
  for (const std::string& user : queue_.users()) usage.push_back(snapshot_.usage[user]);
  const QueuedJob* head = FindHead(usage);
  const std::string first = head == nullptr ? "" : head->id;
  const Decision decision = Pick(snapshot_, now_);
  CheckStarts(decision);
  CheckQuota(decision);
  CheckOvertaken(decision);
  CheckStops(decision);
  for (const Assignment& start : decision.start) Start(start);
  for (const Preemption& stop : decision.preempt) Stop(stop);
  CheckDevices();
  CheckHead(first);
}

void Simulator::Start(const Assignment& assignment) {
  const int index = index_.at(assignment.job_id);
  SimulatedJob& job = jobs_[static_cast<size_t>(index)];
  const QueuedJob& queued = job.job;
  queue_.Remove(queued.id);
  RunningJob running;
  running.id = queued.id;
  running.user = queued.user;
  running.priority = queued.priority;
  for (const std::string& device : assignment.device_ids) running.devices.push_back(std::stoi(device.substr(1)));
  running.share = queued.requirement.share;
  running.memory_bytes = queued.requirement.memory_bytes;
  running.start = now_;
  running.end = now_ + queued.requirement.max_hold;
  running.preemptible = queued.requirement.preemptible;
  running.overtook = assignment.overtook;
  running.checkpoint_time = job.checkpoint_time;
  running.sweep_id = queued.sweep_id;
  if (!queued.sweep_id.empty() && ++sweep_running_[queued.sweep_id] > 3)
    Fail(absl::StrCat(queued.sweep_id, " runs more than 3"));
  user_devices_[queued.user] += static_cast<int>(running.devices.size());
  if (user_devices_[queued.user] > snapshot_.policy.max_running_devices_per_user)
    Fail(absl::StrCat(queued.user, " is over its quota"));
  ++figures_.starts;
  figures_.overtakers += running.overtook.empty() ? 0 : 1;
  figures_.gangs += running.devices.size() > 1 ? 1 : 0;
  figures_.shared += running.share ? 1 : 0;
  figures_.picky += queued.requirement.too_small.empty() ? 0 : 1;
  if (!job.started) {
    job.first_start = now_;
    const auto& usable = queued.requirement.usable;
    const bool free = queued.not_before <= job.submitted && queued.waits_for.empty() && queued.sweep_id.empty() &&
                      std::count(usable.begin(), usable.end(), true) >= kGroupDevices;
    if (queued.priority == 5 && free) {
      figures_.longest_urgent_wait = std::max(figures_.longest_urgent_wait, now_ - job.submitted);
    }
  }
  job.started = true;
  Add(now_ + job.left, Event::kEnd, index);
  snapshot_.running.push_back(std::move(running));
}

void Simulator::Stop(const Preemption& preemption) {
  RunningJob* running = FindRunning(preemption.job_id);
  const int index = index_.at(preemption.job_id);
  running->stopping = true;
  running->stops_for = preemption.for_job;
  running->end = std::min(running->end, now_ + snapshot_.policy.stop_grace);
  ++figures_.stops;
  // Where the job ends at that very time it has ended.
  Add(now_ + jobs_[static_cast<size_t>(index)].checkpoint_time, Event::kStopped, index);
}

bool Simulator::Overtook(const RunningJob& running, const QueuedJob& job) {
  return std::find(running.overtook.begin(), running.overtook.end(), job.id) != running.overtook.end();
}

bool Simulator::RunsWhere(const RunningJob& running, const QueuedJob& job) const {
  return std::any_of(running.devices.begin(), running.devices.end(),
                     [&](int device) { return CouldHold(job, static_cast<size_t>(device)); });
}

void Simulator::CheckDevices() {
  std::vector<int> exclusive(snapshot_.devices.size(), 0), sharing(snapshot_.devices.size(), 0);
  std::vector<int64_t> bytes(snapshot_.devices.size(), 0);
  for (const RunningJob& running : snapshot_.running) {
    const Requirement& need = jobs_[static_cast<size_t>(index_.at(running.id))].job.requirement;
    std::set<int> groups;
    if (static_cast<int>(running.devices.size()) != need.gpus)
      Fail(absl::StrCat(running.id, " has not all its devices"));
    for (const int device : running.devices) {
      const auto i = static_cast<size_t>(device);
      ++(running.share ? sharing : exclusive)[i];
      bytes[i] += running.memory_bytes;
      groups.insert(snapshot_.devices[i].group);
      if (!need.usable[i]) Fail(absl::StrCat(running.id, " runs on d", device, ", which it cannot use"));
      if (running.start == now_ && snapshot_.devices[i].held_back != v1::Job::QUEUE_REASON_UNSPECIFIED) {
        Fail(absl::StrCat(running.id, " starts on a drained device"));
      }
    }
    if (groups.size() != 1) Fail(absl::StrCat(running.id, " runs on several kinds of devices"));
  }
  for (size_t i = 0; i < exclusive.size(); ++i) {
    const bool fits = exclusive[i] == 0 || (exclusive[i] == 1 && sharing[i] == 0);
    if (!fits || bytes[i] > snapshot_.devices[i].memory_bytes || sharing[i] > snapshot_.policy.max_sharing) {
      Fail(absl::StrCat("d", i, " has ", exclusive[i], " exclusive and ", sharing[i], " sharing jobs with ", bytes[i],
                        " bytes"));
    }
  }
}

bool Simulator::AtDeviceQuota(const QueuedJob& job) const {
  const auto user = user_devices_.find(job.user);
  const int held = user == user_devices_.end() ? 0 : user->second;
  return held + job.requirement.gpus > snapshot_.policy.max_running_devices_per_user;
}

bool Simulator::AtSweepQuota(const QueuedJob& job) const {
  const auto sweep = sweep_running_.find(job.sweep_id);
  return job.sweep_max_parallel > 0 && sweep != sweep_running_.end() && sweep->second >= job.sweep_max_parallel;
}

bool Simulator::AtQuota(const QueuedJob& job) const { return AtDeviceQuota(job) || AtSweepQuota(job); }

// When its user's quota has room for it if all of the user's jobs take the time they may.
absl::Time Simulator::QuotaBoundOf(const QueuedJob& job) const {
  std::map<absl::Time, int> ends;
  for (const RunningJob& running : snapshot_.running) {
    if (running.user == job.user) ends[std::max(now_, running.end)] += static_cast<int>(running.devices.size());
  }
  int held = user_devices_.at(job.user);
  for (const auto& [end, devices] : ends) {
    held -= devices;
    if (held + job.requirement.gpus <= snapshot_.policy.max_running_devices_per_user) return end;
  }
  return absl::InfiniteFuture();
}

void Simulator::FindKept() {
  kept_.clear();
  const auto place = [](const QueuedJob& job) { return std::pair(-job.priority, job.submit_sequence); };
  for (const QueueClass& cls : queue_.classes()) {
    for (const auto& [key, line] : cls.lines) {
      const QueuedJob& job = *line.jobs.front();
      if (!AtDeviceQuota(job) || AtSweepQuota(job)) continue;
      const auto kept = kept_.find(job.user);
      if (kept != kept_.end() && place(*kept->second.job) < place(job)) continue;
      if (IsPossible(job)) kept_[job.user].job = &job;
    }
  }
  for (auto& [user, kept] : kept_) kept.until = QuotaBoundOf(*kept.job);
}

// It is behind the one that its user's quota keeps waiting, and may delay it.
bool Simulator::IsKeptFrom(const QueuedJob& job) const {
  const auto kept = kept_.find(job.user);
  if (kept == kept_.end()) return false;
  const QueuedJob& first = *kept->second.job;
  if (std::pair(-job.priority, job.submit_sequence) < std::pair(-first.priority, first.submit_sequence)) return false;
  const absl::Duration hold = queue_.classes()[static_cast<size_t>(queue_.ClassOf(job))].requirement.max_hold;
  return kept->second.until == absl::InfiniteFuture() || now_ + hold > kept->second.until;
}

// The first in line that no quota keeps waiting, nor a job that one does; those that pass such a one, where there is
// room for them at once.
const QueuedJob* Simulator::FindHead(const std::vector<double>& usage) {
  FindKept();
  const QueuedJob* head = nullptr;
  double head_usage = 0;
  for (const QueueClass& cls : queue_.classes()) {
    const QueuedJob* own = nullptr;
    for (const auto& [key, line] : cls.lines) {
      const QueuedJob* job = line.jobs.front();
      if (own != nullptr && job->priority < own->priority) break;
      const double has = usage[static_cast<size_t>(line.user)];
      const bool before = head == nullptr || std::tuple(-job->priority, has, job->submit_sequence) <
                                                 std::tuple(-head->priority, head_usage, head->submit_sequence);
      if (AtQuota(*job) || IsKeptFrom(*job)) continue;
      const auto kept = kept_.find(job->user);
      const bool passes =
          kept != kept_.end() && std::pair(-job->priority, job->submit_sequence) >
                                     std::pair(-kept->second.job->priority, kept->second.job->submit_sequence);
      if (passes && before) {
        bool has_room = false;
        for (int group = 0; group < options_.groups; ++group) {
          has_room = has_room || FreeFor(*job, group) >= job->requirement.gpus;
        }
        if (!has_room) continue;
      }
      own = job;
      if (!before) continue;
      head = job;
      head_usage = has;
    }
  }
  // A round looks at others only where none of their class waits.
  std::erase_if(kept_, [&](const auto& entry) {
    if (head == nullptr) return false;
    const QueuedJob& job = *entry.second.job;
    return std::tuple(-job.priority, usage[static_cast<size_t>(queue_.LineOf(job).user)], job.submit_sequence) >
           std::tuple(-head->priority, head_usage, head->submit_sequence);
  });
  return head;
}

// Nobody takes what is kept for a job of the same user.
void Simulator::CheckQuota(const Decision& decision) {
  figures_.kept += static_cast<int64_t>(kept_.size());
  for (const Assignment& start : decision.start) {
    const QueuedJob& job = *queue_.Find(start.job_id);
    if (!kept_.contains(job.user)) continue;
    ++figures_.passed;
    if (IsKeptFrom(job)) Fail(absl::StrCat(job.id, " takes what is kept for ", kept_.at(job.user).job->id));
  }
}

// A job of its user that waits before it may need what is left of the quota, or those for which others stop.
bool Simulator::MayLeaveQuotaTo(const QueuedJob& job, const Decision& decision,
                                const std::set<std::string>& started) const {
  const auto user = user_devices_.find(job.user);
  int left = snapshot_.policy.max_running_devices_per_user - job.requirement.gpus;
  if (user != user_devices_.end()) left -= user->second;
  for (const auto& [id, block] : decision.job_blocks) {
    const QueuedJob* other = queue_.Find(id);
    if (other->user == job.user) left -= other->requirement.gpus;
  }
  for (const QueueClass& cls : queue_.classes()) {
    for (const auto& [key, line] : cls.lines) {
      const auto other = std::find_if(line.jobs.begin(), line.jobs.end(),
                                      [&](const QueuedJob* waiting) { return !started.contains(waiting->id); });
      if (other == line.jobs.end() || (*other)->user != job.user || (*other)->requirement.gpus <= left) continue;
      if (std::pair(-(*other)->priority, (*other)->submit_sequence) < std::pair(-job.priority, job.submit_sequence) &&
          IsPossible(**other)) {
        return true;
      }
    }
  }
  return false;
}

bool Simulator::CouldHold(const QueuedJob& job, size_t device) const {
  return job.requirement.usable[device] && job.requirement.memory_bytes <= snapshot_.devices[device].memory_bytes;
}

int Simulator::FreeFor(const QueuedJob& job, int group) const {
  std::vector<int64_t> used(snapshot_.devices.size(), 0);
  std::vector<int> sharing(snapshot_.devices.size(), 0);
  for (const RunningJob& running : snapshot_.running) {
    for (const int device : running.devices) {
      const bool beside = running.share && job.requirement.share;
      used[static_cast<size_t>(device)] += beside ? running.memory_bytes : (int64_t{kLargeGib} << 30) + 1;
      ++sharing[static_cast<size_t>(device)];
    }
  }
  int free = 0;
  for (size_t i = 0; i < used.size(); ++i) {
    const bool open = snapshot_.devices[i].group == group && job.requirement.usable[i] &&
                      snapshot_.devices[i].held_back == v1::Job::QUEUE_REASON_UNSPECIFIED;
    const bool room = used[i] + job.requirement.memory_bytes <= snapshot_.devices[i].memory_bytes &&
                      sharing[i] < snapshot_.policy.max_sharing;
    free += open && room ? 1 : 0;
  }
  return free;
}

// When the job has its devices if all who hold them take the time they may.
absl::Time Simulator::BoundOf(const QueuedJob& job) const {
  absl::Time best = absl::InfiniteFuture();
  for (int group = 0; group < options_.groups; ++group) {
    std::vector<absl::Time> ends;
    for (size_t i = 0; i < snapshot_.devices.size(); ++i) {
      const DeviceState& device = snapshot_.devices[i];
      const bool open = device.held_back == v1::Job::QUEUE_REASON_UNSPECIFIED;
      if (device.group != group || !CouldHold(job, i) || !open) continue;
      absl::Time end = now_;
      for (const RunningJob& running : snapshot_.running) {
        const bool holds = std::find(running.devices.begin(), running.devices.end(), i) != running.devices.end();
        // Who overtook it stops at once.
        if (holds && !(Overtook(running, job) && running.preemptible)) end = std::max(end, running.end);
      }
      ends.push_back(end);
    }
    const auto wanted = static_cast<size_t>(job.requirement.gpus);
    if (ends.size() < wanted) continue;
    std::sort(ends.begin(), ends.end());
    best = std::min(best, ends[wanted - 1]);
  }
  return best;
}

bool Simulator::IsPossible(const QueuedJob& job) const {
  std::vector<int> open(static_cast<size_t>(options_.groups), 0);
  for (size_t i = 0; i < snapshot_.devices.size(); ++i) {
    const DeviceState& device = snapshot_.devices[i];
    if (!CouldHold(job, i) || device.held_back != v1::Job::QUEUE_REASON_UNSPECIFIED) continue;
    if (++open[static_cast<size_t>(device.group)] >= job.requirement.gpus) return true;
  }
  return false;
}

// Where nothing but those that overtook the head, and those that stop already, is in its way they stop for it.
void Simulator::CheckYields(const Decision& decision, const QueuedJob& head) {
  std::vector<char> stays(snapshot_.devices.size(), 0);
  for (const RunningJob& running : snapshot_.running) {
    const bool fits = 1.5 * *running.checkpoint_time <= snapshot_.policy.stop_grace;
    const bool yields = running.stopping || (running.preemptible && fits && Overtook(running, head));
    for (const int device : running.devices) stays[static_cast<size_t>(device)] |= yields ? 0 : 1;
  }
  std::vector<int> yielded(static_cast<size_t>(options_.groups), 0);
  for (size_t i = 0; i < stays.size(); ++i) {
    const DeviceState& device = snapshot_.devices[i];
    if (stays[i] != 0 || !CouldHold(head, i) || device.held_back != v1::Job::QUEUE_REASON_UNSPECIFIED) continue;
    const bool is_enough = ++yielded[static_cast<size_t>(device.group)] >= head.requirement.gpus;
    if (is_enough && !decision.job_blocks.contains(head.id)) {
      return Fail(absl::StrCat(head.id, " waits for those that overtook it, and they do not stop"));
    }
  }
}

void Simulator::CheckOvertaken(const Decision& decision) {
  std::set<std::string> started, users;
  for (const Assignment& start : decision.start) {
    CheckOvertakenBy(start, decision, started, users);
    started.insert(start.job_id);
    users.insert(queue_.Find(start.job_id)->user);
  }
}

// `started`: before it, in this round; jobs of their `users`, and of sweeps, may have come to a quota with them, and
// those of the users later in line.
void Simulator::CheckOvertakenBy(const Assignment& start, const Decision& decision,
                                 const std::set<std::string>& started, const std::set<std::string>& users) {
  const QueuedJob& job = *queue_.Find(start.job_id);
  const auto could_use = [&](const QueuedJob& other) {
    return std::any_of(start.device_ids.begin(), start.device_ids.end(), [&](const std::string& device) {
      return CouldHold(other, static_cast<size_t>(std::stoi(device.substr(1))));
    });
  };
  std::set<std::string> overtook(start.overtook.begin(), start.overtook.end());
  for (const std::string& id : overtook) {
    const QueuedJob* other = queue_.Find(id);
    const bool waits = other != nullptr && !started.contains(id) && could_use(*other);
    const bool later = waits && other->priority == job.priority && other->user == job.user &&
                       other->submit_sequence > job.submit_sequence;
    if (!waits || other->priority < job.priority || later) Fail(absl::StrCat(start.job_id, " did not overtake ", id));
  }
  if (overtook.size() >= kMaxOvertaken) return;
  const auto place = [&](const QueuedJob& other) {
    return std::tuple(-other.priority, snapshot_.usage[other.user], other.submit_sequence);
  };
  for (const QueueClass& cls : queue_.classes()) {
    if (cls.lines.empty()) continue;
    const QueuedJob& any = *cls.lines.begin()->second.jobs.front();
    if (!could_use(any) || !IsPossible(any)) continue;
    for (const auto& [key, line] : cls.lines) {
      const QueuedJob& first = *line.jobs.front();
      if (users.contains(first.user) || !first.sweep_id.empty() || AtQuota(first)) continue;
      for (const QueuedJob* other : line.jobs) {
        if (place(*other) >= place(job)) break;
        if (!overtook.contains(other->id) && !MayLeaveQuotaTo(*other, decision, started)) {
          return Fail(absl::StrCat(start.job_id, " overtakes ", other->id, ", and does not say so"));
        }
      }
    }
  }
}

// Before anything starts: the head is among those that do, where there is room for it.
void Simulator::CheckStarts(const Decision& decision) {
  std::vector<double> usage;
  for (const std::string& user : queue_.users()) usage.push_back(snapshot_.usage[user]);
  const QueuedJob* head = FindHead(usage);
  if (head == nullptr) {
    if (!decision.start.empty()) Fail("a job starts although all are at their quota");
    return;
  }
  bool starts = false;
  for (const Assignment& start : decision.start) starts = starts || start.job_id == head->id;
  for (int group = 0; group < options_.groups && !starts; ++group) {
    if (FreeFor(*head, group) >= head->requirement.gpus)
      Fail(absl::StrCat(head->id, " is first and has room, but does not start"));
  }
  if (!starts) CheckYields(decision, *head);
  // What others leave for it is its own; it needs no more.
  if (starts || decision.job_blocks.contains(head->id) || BoundOf(*head) != absl::InfiniteFuture()) return;
  // Nobody knows when it will start: on what it waits for only those start that can be stopped.
  const bool possible = IsPossible(*head);
  for (const Assignment& start : decision.start) {
    const Requirement& need = queue_.Find(start.job_id)->requirement;
    for (const std::string& device : start.device_ids) {
      const bool wanted = CouldHold(*head, static_cast<size_t>(std::stoi(device.substr(1))));
      if (possible && wanted && !need.preemptible)
        Fail(absl::StrCat(start.job_id, " takes what ", head->id, " waits for"));
    }
  }
}

void Simulator::CheckStops(const Decision& decision) {
  for (const Preemption& stop : decision.preempt) {
    const RunningJob* victim = FindRunning(stop.job_id);
    const QueuedJob* job = queue_.Find(stop.for_job);
    if (victim == nullptr || job == nullptr)
      return Fail(absl::StrCat(stop.job_id, " does not run, or ", stop.for_job, " does not wait"));
    const bool lower = victim->priority < job->priority && now_ - victim->start >= snapshot_.policy.min_run;
    const bool overtook = Overtook(*victim, *job);
    if (!victim->preemptible || victim->stopping || (!lower && !overtook))
      Fail(absl::StrCat(stop.job_id, " must not stop for ", stop.for_job));
    if (1.5 * *victim->checkpoint_time > snapshot_.policy.stop_grace)
      Fail(absl::StrCat(stop.job_id, " cannot write its checkpoint"));
    if (!RunsWhere(*victim, *job)) Fail(absl::StrCat(stop.job_id, " stops for nothing"));
  }
}

// While a job is the first in line, the time at which it starts at the latest does not move back.
void Simulator::CheckHead(const std::string& first) {
  const QueuedJob* head = queue_.Find(first);
  if (head == nullptr) return head_.reset();
  const absl::Time bound = BoundOf(*head);
  if (head_ && head_->id == first) {
    ++figures_.heads;
    if (bound > head_->bound + snapshot_.policy.stop_grace) {
      Fail(absl::StrCat(first, " was to start at ", absl::FormatTime(head_->bound, absl::UTCTimeZone()),
                        ", and now at ", absl::FormatTime(bound, absl::UTCTimeZone())));
    }
    head_->bound = std::min(bound, head_->bound);
    return;
  }
  head_ = Head{first, bound};
}

}  // namespace ampd
