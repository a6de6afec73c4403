// Which uploaded datasets jobs use.
#include "server/jobs/core.h"

namespace ampd {

void ControllerCore::NoteDatasets(const LiveJob& live) {
  for (const auto& [dataset, content] : live.job.record().datasets) {
    const std::string& user = live.job.proto().user();
    if (!IsTerminal(live.job.state())) {
      dataset_jobs_[dataset][user].insert(live.job.id());
      continue;
    }
    const auto users = dataset_jobs_.find(dataset);
    if (users == dataset_jobs_.end()) continue;
    const auto jobs = users->second.find(user);
    if (jobs == users->second.end()) continue;
    jobs->second.erase(live.job.id());
    if (jobs->second.empty()) users->second.erase(jobs);
    if (users->second.empty()) dataset_jobs_.erase(users);
  }
}

DatasetUse ControllerCore::FindDatasetUse(const std::string& dataset, const Owner& owner) const {
  const auto users = dataset_jobs_.find(dataset);
  if (users == dataset_jobs_.end()) return {};
  const auto jobs = owner ? users->second.find(*owner) : users->second.begin();
  return {true, jobs == users->second.end() ? "" : *jobs->second.begin()};
}

}  // namespace ampd
