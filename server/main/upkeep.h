// Keeps the state directory from growing for ever: old step reports are merged, checkpoints and other files of ended
// jobs and uploaded model files that no job needs removed.
#ifndef AMPD_SERVER_MAIN_UPKEEP_H_
#define AMPD_SERVER_MAIN_UPKEEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/config.pb.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"
#include "server/events/log_subject.h"
#include "server/service/upload_store.h"
#include "server/store/retention.h"
#include "server/store/store.h"

namespace ampd {

// One thread, which goes over all jobs at once and again after each period. What fails is logged and tried again then.
class Upkeep {
 public:
  struct Options {
    // Every field set.
    v1::ServerConfig::Retention retention;
    // Job J's checkpoints lie in ROOT/J for both of these; the second one may be empty, or on a disk that hangs.
    std::string checkpoint_root;
    std::string mirror_root;
    // Its other files lie in ROOT/J for each of these, and in TENSORBOARD_ROOT/TensorBoardFolder(job); empty: there are
    // none. All but the mirror are the daemon's own.
    std::vector<std::string> file_roots;
    std::string tensorboard_root;
    // Null: there are none.
    UploadStore* uploads = nullptr;
    absl::Duration period = absl::Hours(1);
    // Whether a process may be about that writes what is the job's: asked, on the thread, of jobs that have ended.
    // Null: there is none.
    std::function<bool(const JobRecord&)> has_worker;
    // Until it is asked again.
    absl::Duration worker_period = absl::Seconds(5);
    // Told, in words, what was removed and what failed.
    SubjectLog log;
    // Told of the end of each pass over all jobs, and of each over those told of or asked again about; may be null.
    std::function<void()> on_pass;
  };

  // The pointers, and what the options call, must outlive this. Does nothing before Begin().
  Upkeep(Options options, Store* store, const Clock* clock);
  ~Upkeep() { Stop(); }
  Upkeep(const Upkeep&) = delete;
  Upkeep& operator=(const Upkeep&) = delete;

  // Looks at the clock, as each pass does, and judges it, the first time, by when the store says that it was in no
  // doubt, or without that by the times of jobs: to be called before jobs write more of them, by that clock. After an
  // error the next pass looks again, and until then nothing is old.
  absl::Status LookAtClock();
  // Starts the thread. Called once.
  void Begin();
  // Ends it, within a transaction's time or that of removing a folder, for good.
  void Stop();
  // The job has ended, and its worker is gone: what that left half-written goes before long, not with the next pass
  // alone. Does not block. On any thread, at any time.
  void JobIsOver(const std::string& job_id);

 private:
  // The checkpoints of an ended job.
  struct Kept {
    absl::Time ended;
    std::string job_id;
    // 0: there are copies in the mirror alone.
    int64_t bytes;
  };
  struct Folder {
    std::string root;
    std::string name;
    // It is the mirror's.
    bool may_hang = false;
  };

  void Run();
  bool stopping();
  // Until the next pass over all jobs is due, or this is stopping; meanwhile looks at those told of.
  void AwaitPass();
  absl::Status Sweep();
  // Nothing counts as old for a while; `why` in words.
  void Doubt(absl::Duration since_boot, const std::string& why);
  // Visits the jobs, newest first, until `visit` says no or this is stopping: false then.
  absl::StatusOr<bool> EachJob(absl::FunctionRef<absl::StatusOr<bool>(const v1::Job&)> visit);
  // When a clock was last in no doubt; the infinite past where no pass of this build has been.
  absl::StatusOr<absl::Time> TrustedTime() const;
  void Trust(absl::Time wall);
  // The shortest age that is set; infinite: nothing is removed for its age.
  absl::Duration ShortestAge() const;
  // When something last happened to a job; the infinite past where nothing did. It looks no further, newest jobs first,
  // once it knows of a time that is not before `enough`, or this is stopping.
  absl::StatusOr<absl::Time> LastKnownTime(absl::Time enough);
  absl::StatusOr<absl::Time> LastTimeOf(const v1::Job& job) const;
  // Of one job: adds it to `kept`, and takes what it needs from `unused`.
  absl::Status LookAfter(const v1::Job& job, std::vector<Kept>* kept, std::set<std::string>* unused);
  absl::Status MergeEvents(const v1::Job& job);
  absl::Status MergeUntil(const std::string& job_id, int64_t keep, bool once);
  absl::StatusOr<MergePass> MergeNext(const std::string& job_id, uint64_t after_sequence, int64_t keep);
  // Removes those that are too old, and the oldest of the others until they fit; copies that are alone with those of
  // jobs that ended later, or for their age: their checkpoints may have been lost otherwise.
  void RemoveCheckpoints(std::vector<Kept> kept);
  // Unless the job is no longer the one that ended then. `what` and `why` in words.
  void Remove(const std::string& job_id, absl::Time ended, const std::vector<Folder>& folders, const std::string& what,
              const std::string& why);
  // Puts them out of the way of what the job may write from then on. False: it is no longer the one that ended then.
  bool SetAside(const std::string& job_id, absl::Time ended, const std::vector<Folder>& folders);
  // Both log what they cannot do.
  void Rename(const std::string& job_id, const Folder& folder) const;
  // Whether it is gone.
  bool RemoveAside(const Folder& folder) const;
  void RemoveAllAside() const;
  // What is too old.
  void RemoveFiles(const v1::Job& job);
  // What a worker that was killed amid a checkpoint, or the removal of one, has left and none after it took away. Where
  // one may yet write, the job is asked about again.
  void RemoveLeftovers(const std::string& job_id);
  int64_t CheckpointBytes(const std::string& job_id) const;
  // In the mirror.
  bool HasCopies(const std::string& job_id) const;
  absl::Time UploadCutoff() const;
  // Those that may go as far as their age goes.
  std::set<std::string> UnusedUploads() const;
  void RemoveUploads(const std::set<std::string>& uploads) const;

  const Options options_;
  Store* const store_;
  const Clock* const clock_;
  // Used by the thread alone, once it is there, as the two after it: the wall clock, at the beginning of the pass; the
  // infinite past, at which nothing is old, while the clock is in doubt.
  absl::Time now_;
  // The wall clock less Clock::SinceBoot, when it was last looked at; nullopt: it was not yet.
  std::optional<absl::Duration> ahead_;
  // By Clock::SinceBoot.
  absl::Duration doubted_until_;
  // Ended jobs whose reports are merged as far as they go, and when they ended. Used by the thread alone.
  std::map<std::string, absl::Time> merged_;
  // Ended jobs with leftovers and, perhaps, a worker. Used by the thread alone.
  std::set<std::string> has_worker_;
  Mutex mutex_;
  CondVar wake_;
  // Told of since they were last looked at.
  std::set<std::string> over_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_UPKEEP_H_
