// Plans that were made already, for specs that differ only in what no plan depends on.
#ifndef AMPD_SERVER_SERVICE_PLAN_CACHE_H_
#define AMPD_SERVER_SERVICE_PLAN_CACHE_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"
#include "server/service/work_pool.h"

namespace ampd {

// The resolved `spec` without the fields that neither the planner's answer nor its errors depend on: name, seed,
// labels, how long it trains and how fast it learns, checkpoints, retries, limits, and what only scheduling reads. A
// field that is not known to be one of these stays.
v1::JobSpec PlannedPart(const v1::JobSpec& spec);

// Thread safe. A plan is used again only while the files it was made from, the planner's program among them, are what
// they were (server/service/file_identity.h), and files that changed within the last two seconds are not relied on.
// Only whole plans are kept: no errors, and none whose data could not be read. Equal questions at the same time are
// asked once.
class PlanCache {
 public:
  using Planner = std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)>;
  using Done = std::function<void(absl::StatusOr<v1::PlanResponse>)>;

  struct Options {
    // Of the answers kept, serialized; the least recently used go first. 0: nothing is kept.
    size_t max_bytes = 16 << 20;
    // What plans depend on besides what requests name: the planner's program.
    std::vector<std::string> files;
  };

  // `planner` runs in `pool`; both, and `clock`, outlive this and every call that is under way.
  PlanCache(Options options, Planner planner, WorkPool* pool, const Clock* clock);

  // `done` is called once: at once for a plan that is there or when `pool` is full (RESOURCE_EXHAUSTED), else in the
  // pool with the planner's answer. `request` is of a resolved spec and asks for no report.
  void Plan(const v1::PlanRequest& request, Done done);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const v1::PlanResponse> response;
    size_t bytes = 0;
  };
  struct Question;

  std::shared_ptr<const v1::PlanResponse> Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ask(std::shared_ptr<Question> question);
  void Answer(const std::shared_ptr<Question>& question);
  // Ends the question of `key`.
  std::vector<std::pair<v1::PlanRequest, Done>> TakeOthers(const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the pool, without looking or keeping.
  void AskAlone(v1::PlanRequest request, Done done);
  void Keep(const std::string& key, const v1::PlanResponse& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Planner planner_;
  WorkPool* const pool_;
  const Clock* const clock_;

  Mutex mutex_;
  // Most recently used first.
  std::list<Entry> kept_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Questions on their way, by key: who asked the same meanwhile.
  std::unordered_map<std::string, std::vector<std::pair<v1::PlanRequest, Done>>> asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_PLAN_CACHE_H_
