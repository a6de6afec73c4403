// One UploadModel call.
#ifndef AMPD_SERVER_SERVICE_UPLOAD_STREAM_H_
#define AMPD_SERVER_SERVICE_UPLOAD_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/service/stall_watch.h"
#include "server/service/upload_store.h"
#include "server/service/work_pool.h"

namespace ampd {

// Takes a file's chunks, one held at a time; a file that is there already is answered at the first. Frees itself once
// the call is over.
class UploadStream : public grpc::ServerReadReactor<v1::UploadModelRequest>,
                     public std::enable_shared_from_this<UploadStream> {
 public:
  // `store`, `pool`, `stalls` and, as gRPC has it, `response` outlive the call.
  // `user`: who sends it; empty where users are not told apart.
  static std::shared_ptr<UploadStream> Start(UploadStore* store, WorkPool* pool, StallWatch* stalls, std::string user,
                                             v1::UploadModelResponse* response);

 private:
  UploadStream(UploadStore* store, WorkPool* pool, std::string user, v1::UploadModelResponse* response)
      : store_(store), pool_(pool), user_(std::move(user)), response_(response) {}

  void OnReadDone(bool ok) override;
  void OnCancel() override { FinishOnce(absl::CancelledError("the upload was cancelled")); }
  void OnDone() override { self_.reset(); }

  // What was read. Runs in the pool.
  void Take(bool ended);
  // True: the file is there already, and the call is answered.
  absl::StatusOr<bool> TakeChunk();
  void End();
  void ReadNext();
  void Answer(int64_t size);
  void FinishOnce(const absl::Status& status);
  bool finished();

  UploadStore* const store_;
  WorkPool* const pool_;
  const std::string user_;
  v1::UploadModelResponse* const response_;
  // The call owns itself until OnDone.
  std::shared_ptr<UploadStream> self_;
  // Used by one step at a time.
  v1::UploadModelRequest request_;
  std::string checksum_;
  std::unique_ptr<UploadStore::Upload> upload_;

  // Itself thread-safe.
  std::unique_ptr<StallWatch::Stream> client_;

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_UPLOAD_STREAM_H_
