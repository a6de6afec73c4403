// Jobs that wait for others: `after` and `after_ok`.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

constexpr size_t kNamed = 3;
constexpr absl::Duration kReadRetry = absl::Minutes(1);

bool NeedsSuccess(const v1::JobSpec& spec, const std::string& id) {
  return std::find(spec.after_ok().begin(), spec.after_ok().end(), id) != spec.after_ok().end();
}

}  // namespace

// Before a job was ever started it waits for all of them; those that have ended are looked up in the store.
std::set<std::string> ControllerCore::AddDependencies(LiveJob& live) {
  const v1::Job& job = live.job.proto();
  if (job.attempt() > 0 || IsTerminal(job.state())) return {};
  std::set<std::string> ids(job.spec().after().begin(), job.spec().after().end());
  ids.insert(job.spec().after_ok().begin(), job.spec().after_ok().end());
  live.waits_for.assign(ids.begin(), ids.end());
  std::set<std::string> ended;
  for (const std::string& id : live.waits_for) {
    dependents_[id].insert(job.id());
    if (Find(id) == nullptr) ended.insert(id);
  }
  return ended;
}

void ControllerCore::LookUpDependencies(const std::set<std::string>& ids) {
  for (const std::string& id : ids) {
    store_->ReadInOrder([this, id](const Database& database) {
      const absl::StatusOr<JobLocation> found = database.LocateJob(id);
      const v1::Job::State state = found.ok() ? found->state : v1::Job::STATE_UNSPECIFIED;
      const absl::Status failed = absl::IsNotFound(found.status()) ? absl::OkStatus() : found.status();
      post_([this, id, state, failed] {
        // Alive again meanwhile: its end will be told.
        if (Find(id) != nullptr) return;
        if (failed.ok()) return DependencyEnded(id, state);
        if (!dependents_.contains(id) || !unread_dependencies_.insert(id).second) return;
        // Whether it succeeded is not known: whoever waits for it goes on waiting.
        Log(absl::StrCat("job ", id, ", for which others wait, cannot be read, trying again: ", failed.message()));
        timers_.Add(clock_->Monotonic() + kReadRetry, [this, id] {
          unread_dependencies_.erase(id);
          LookUpDependencies({id});
        });
      });
    });
  }
}

void ControllerCore::DependencyEnded(const std::string& id, v1::Job::State state) {
  const auto dependents = dependents_.extract(id);
  if (dependents.empty()) return;
  needs_schedule_ = true;
  for (const std::string& dependent : dependents.mapped()) {
    LiveJob* live = Find(dependent);
    if (live == nullptr) continue;
    std::erase(live->waits_for, id);
    Touch(*live);
    if (IsTerminal(live->job.state()) || state == v1::Job::SUCCEEDED) continue;
    if (!NeedsSuccess(live->job.proto().spec(), id)) continue;
    const std::string what = state == v1::Job::STATE_UNSPECIFIED ? "is not known any more"
                                                                 : absl::StrCat("ended ", v1::Job::State_Name(state));
    timers_.Cancel(&live->retry_timer);
    Enter(*live, v1::Job::CANCELLED, absl::StrCat("job ", id, ", which must succeed first (after_ok), ", what));
  }
}

// Before the job is forgotten.
void ControllerCore::ForgetDependencies(const LiveJob& live) {
  for (const std::string& id : live.waits_for) {
    const auto dependents = dependents_.find(id);
    if (dependents == dependents_.end()) continue;
    dependents->second.erase(live.job.id());
    if (dependents->second.empty()) dependents_.erase(dependents);
  }
  DependencyEnded(live.job.id(), live.job.state());
}

std::string ControllerCore::DescribeDependencies(const QueuedJob& job) const {
  std::vector<std::string> names;
  for (const std::string& id : job.waits_for) {
    if (names.size() == kNamed) break;
    const auto live = live_.find(id);
    names.push_back(live == live_.end() ? id
                                        : absl::StrCat(id, " (", v1::Job::State_Name(live->second.job.state()), ")"));
  }
  const size_t more = job.waits_for.size() - names.size();
  return absl::StrCat("waits for ", absl::StrJoin(names, ", "), more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                      " to end");
}

}  // namespace ampd
