// A TrainingService on a free port that does as it is told.
#ifndef AMPD_TESTS_UNIT_CLIENT_FAKE_TRAINING_SERVICE_H_
#define AMPD_TESTS_UNIT_CLIENT_FAKE_TRAINING_SERVICE_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.pb.h"

namespace ampd::client {

// One WatchJob stream: it sends the events after after_sequence up to `until`, then, `quiet` later, ends with `status`;
// or hangs until the client goes away.
struct StreamScript {
  uint64_t until = UINT64_MAX;
  absl::Status status;
  bool hang = false;
  absl::Duration quiet;
};

class FakeTrainingService {
 public:
  FakeTrainingService();
  ~FakeTrainingService();

  const std::string& address() const { return address_; }
  // Stops and starts listening on the same port.
  void Stop();
  void Start();

  // Waits until `count` WatchJob streams were asked for.
  void AwaitWatches(size_t count);

  // Set before use; guarded by nothing.
  v1::Job job;
  std::vector<v1::JobEvent> events;
  std::vector<v1::FileChunk> chunks;
  std::deque<StreamScript> streams;  // For the first streams; the later ones send everything.
  std::deque<absl::Status> creates;  // For the first CreateJob calls; the later ones succeed.
  // For the first DownloadCheckpoint calls: sends chunks until `bytes` were sent, then ends with `status`; the later
  // calls send all that is asked for.
  struct DownloadScript {
    size_t bytes = 0;
    absl::Status status;
    // What there is afterwards; empty: the same.
    std::vector<v1::FileChunk> then;
  };
  std::deque<DownloadScript> checkpoint_downloads;
  std::deque<absl::Status> downloads;
  std::deque<absl::Status> uploads;          // For the first UploadModel calls.
  std::deque<absl::Status> dataset_uploads;  // For the first UploadDataset calls; there is no dataset before.
  // Checksums of files that are there already.
  std::set<std::string> known_uploads;
  absl::Status get_status;
  std::string unknown_job;                                           // Which GetJob does not find.
  absl::Status sweep_status = absl::NotFoundError("no such sweep");  // Of GetSweep, which else gives this:
  v1::JobSweep sweep;
  absl::Status token_status;   // Of CreateToken.
  absl::Status update_status;  // Of UpdateJob.
  absl::Status list_status;    // Of ListJobs.
  absl::Status plan_status;    // Of PlanJob.

  // What was asked. Read after the calls have ended.
  std::vector<v1::CreateJobRequest> created;
  std::vector<v1::CreateSweepRequest> sweeps_created;
  std::vector<std::string> sweep_warnings;
  std::vector<v1::PlanJobRequest> planned;
  // What came, by the checksum announced.
  std::map<std::string, std::string> uploaded;
  int dataset_uploads_begun = 0;
  std::vector<std::string> got;  // By GetJob.
  std::vector<v1::WatchJobRequest> watched;
  std::vector<v1::ListJobsRequest> listed;
  std::vector<v1::ListSweepsRequest> sweeps_listed;
  std::vector<v1::ExportModelRequest> exported;
  std::vector<v1::DownloadCheckpointRequest> downloaded;

 private:
  class Service;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Service> service_;
  struct Server;
  std::unique_ptr<Server> server_;
  std::string address_ = "127.0.0.1:0";
};

// A job's events: QUEUED, STARTING, RUNNING, `steps` reports, an evaluation and the end.
std::vector<v1::JobEvent> ExampleEvents(int steps, v1::Job::State end);

}  // namespace ampd::client

#endif  // AMPD_TESTS_UNIT_CLIENT_FAKE_TRAINING_SERVICE_H_
