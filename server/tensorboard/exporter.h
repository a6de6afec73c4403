// Keeps an event file for TensorBoard beside every job.
#ifndef AMPD_SERVER_TENSORBOARD_EXPORTER_H_
#define AMPD_SERVER_TENSORBOARD_EXPORTER_H_

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/events/log_subject.h"
#include "server/store/records.h"
#include "server/tensorboard/event_file.h"
#include "server/tensorboard/summaries.h"

namespace ampd {

// The folder of a job's event file, in the directory of all: <its name>-<its id>. The spec must be there.
std::string TensorBoardFolder(const v1::Job& job);

// Follows every job on a thread of its own, a page of events at a time, reading the event log as watchers do: it
// neither slows nor fails a job. After a restart of the daemon it goes on where a file ends. Thread-safe.
class TensorBoardExporter {
 public:
  struct Options {
    // Files are DIRECTORY/TensorBoardFolder(job)/events.out.tfevents.<time of creation>.ampd.
    std::string directory;
    // As the daemon's: a job's pictures are in <artifact_root>/<id>.
    std::string artifact_root;
    // The job of an id with its spec; called on the exporter's thread.
    std::function<absl::StatusOr<v1::Job>(const std::string& id)> find_job;
    // Told of files that cannot be written, once for each job and cause.
    SubjectLog log;
    // After a file could not be written.
    absl::Duration retry = absl::Seconds(30);
    // Files that are open at a time, >= 1, besides the one that is being written: of the jobs that wrote last.
    size_t max_open_files = 64;
  };

  // `clock` outlives this.
  TensorBoardExporter(Options options, const Clock* clock);
  // As Stop().
  ~TensorBoardExporter();
  TensorBoardExporter(const TensorBoardExporter&) = delete;
  TensorBoardExporter& operator=(const TensorBoardExporter&) = delete;

  // Call once. `log` outlives this, or the call of Stop().
  void Start(EventLog* log);
  // Leaves what was not written yet to the next start. OnWrite has no effect from then on.
  void Stop();

  // A durable change, as EventLog's listener gets it. Does not block.
  void OnWrite(const JobWrite& write);
  // Waits until everything before the call is in the files, or could not be written, or nothing more is to come.
  void Flush();

 private:
  struct Followed {
    std::string path;
    std::unique_ptr<Summaries> summaries;
    // Null before the first event, and after an error; closed while others wrote since.
    std::unique_ptr<EventFile> file;
    absl::Duration retry_at = -absl::InfiniteDuration();
    std::string last_error;
    bool ended = false;
  };

  void Run();
  // Those whose time has come have news.
  void RetryFailed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const v1::Job& job) const;
  // Whether all that there is was written.
  bool Follow(const std::string& job_id, Followed* job);
  absl::Status Prepare(const std::string& job_id, Followed* job);
  absl::Status WritePages(const std::string& job_id, Followed* job);
  // After the job was followed: closes what is open beyond the bound.
  void BoundOpenFiles(const std::string& job_id);

  const Options options_;
  const Clock* const clock_;
  // Set before the thread starts.
  EventLog* log_ = nullptr;
  // These three are used by the thread alone.
  std::map<std::string, Followed> jobs_;
  // Whose files are open, the one that wrote last at the end.
  std::list<std::string> open_;
  // To be tried again, and when, by Clock::Monotonic.
  std::set<std::pair<absl::Duration, std::string>> failed_;

  Mutex mutex_;
  CondVar changed_;
  // Ids of jobs with events that were not looked at yet.
  std::set<std::string> news_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_TENSORBOARD_EXPORTER_H_
