// What users and sweeps may have at the same time.
#ifndef AMPD_SERVER_SCHEDULING_QUOTA_H_
#define AMPD_SERVER_SCHEDULING_QUOTA_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/pick.h"

namespace ampd {

// As many of its jobs run as max_parallel allows.
bool IsSweepFull(const QuotaUse& use, const QueueLine& line);

// Why jobs of the line, which need so many devices each, start on none, whatever is free; unset: they may.
std::optional<Block> OverQuota(const SchedulingSnapshot& snapshot, const QuotaUse& use, const QueueLine& line,
                               int gpus);

// The quotas while Pick gives devices out. Of what its user may have, the first job that waits has its devices kept:
// else smaller ones behind it would take each device that comes free, and it would never start.
class QuotaLedger {
 public:
  // `snapshot` must outlive it.
  QuotaLedger(const SchedulingSnapshot& snapshot, absl::Time now);

  const QuotaUse& use() const { return use_; }
  void Start(const QueueLine& line, const Requirement& need);

  // Keeps what a job needs that waits until enough of its user's devices are free; or, with those, for other devices.
  // Only the first of a user counts.
  void KeepOverQuota(const QueueLine& line, const QueuedJob& job, const Requirement& need);
  void KeepWaiting(const QueueLine& line, const QueuedJob& job, const Requirement& need);
  // Others stop for the job, which has what they leave; it is to be within its user's devices and its sweep then.
  void KeepPromised(const QueueLine& line, const QueuedJob& job, const Requirement& need);
  // Why nothing of the line's sweep starts, nor others stop for it, where those that others stop for are as many as are
  // left to it; unset: they are not.
  std::optional<Block> PromisedToSweep(const QueueLine& line) const;

  // Why a job of the line that is within the quotas must leave what is left to its user's first; unset: it need not.
  // With `is_to_start` it may if it is gone before the first can have it.
  std::optional<Block> KeptFrom(const QueueLine& line, const Requirement& need, bool is_to_start) const;

 private:
  struct Kept {
    // Empty: none.
    std::string job_id;
    int devices = 0;
    // Who is gone by then does not delay the job.
    absl::Time until = absl::InfinitePast();
  };
  // When so many more devices of the user's may be held, at the latest.
  absl::Time FreeAt(int user, int devices) const;

  const SchedulingSnapshot& snapshot_;
  const absl::Time now_;
  const int limit_;
  QuotaUse use_;
  // By the queue's index of users.
  std::vector<Kept> kept_;
  // Jobs of a sweep that others stop for.
  std::unordered_map<std::string, int> promised_;
  struct Started {
    int user = 0;
    int devices = 0;
    absl::Time end;
  };
  std::vector<Started> started_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_QUOTA_H_
