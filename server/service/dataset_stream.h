// One UploadDataset call.
#ifndef AMPD_SERVER_SERVICE_DATASET_STREAM_H_
#define AMPD_SERVER_SERVICE_DATASET_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/service/dataset_store.h"
#include "server/service/stall_watch.h"
#include "server/service/work_pool.h"

namespace ampd {

// Takes a dataset's messages, one held at a time. What came stays when the call breaks. Frees itself once the call is
// over.
class DatasetStream : public grpc::ServerReadReactor<v1::UploadDatasetRequest>,
                      public std::enable_shared_from_this<DatasetStream> {
 public:
  // Where the work is done; they outlive the call.
  struct Pools {
    WorkPool* pieces;
    // Which may take minutes each: what others send is not to wait for them.
    WorkPool* commits;
    StallWatch* stalls;
  };

  // `store` and, as gRPC has it, `response` outlive the call. `user`: who sends; as DatasetStore::Begin's.
  static std::shared_ptr<DatasetStream> Start(DatasetStore* store, const Pools& pools, std::string user,
                                              v1::Dataset* response);

 private:
  DatasetStream(DatasetStore* store, const Pools& pools, std::string user, v1::Dataset* response)
      : store_(store), pools_(pools), user_(std::move(user)), response_(response) {}

  void OnReadDone(bool ok) override;
  void OnCancel() override { FinishOnce(absl::CancelledError("the upload was cancelled")); }
  void OnDone() override { self_.reset(); }

  // What was read. Runs in a pool, as does Commit.
  void Take(bool ended);
  absl::Status TakeMessage();
  void Commit();
  void End();
  void ReadNext();
  void Answer(const v1::Dataset& dataset);
  void FinishOnce(const absl::Status& status);
  bool finished();

  DatasetStore* const store_;
  const Pools pools_;
  const std::string user_;
  v1::Dataset* const response_;
  // Set at the start and cleared by gRPC's last call.
  std::shared_ptr<DatasetStream> self_;
  // Used by one step at a time.
  v1::UploadDatasetRequest request_;
  std::string name_;
  std::unique_ptr<DatasetStore::Upload> upload_;

  // Itself thread-safe.
  std::unique_ptr<StallWatch::Stream> client_;

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DATASET_STREAM_H_
