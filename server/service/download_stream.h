// One DownloadCheckpoint, DownloadArtifact or ExportModel call.
#ifndef AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_
#define AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/service/checkpoint_files.h"
#include "server/service/departure.h"
#include "server/service/stall_watch.h"
#include "server/service/work_pool.h"

namespace ampd {

// Sends files in chunks of at most 1 MiB, one held at a time; an empty file is one empty chunk. Frees itself once the
// call is over.
class DownloadStream : public grpc::ServerWriteReactor<v1::FileChunk>,
                       public std::enable_shared_from_this<DownloadStream> {
 public:
  // The files are read in `pool`; it, `stalls` and, as gRPC has it, `context` outlive the call.
  static std::shared_ptr<DownloadStream> Create(grpc::CallbackServerContext* context, WorkPool* pool,
                                                StallWatch* stalls);

  // Opens the files. `caller` is the call's: who opens for long should stop once they have gone.
  using Opener = std::function<absl::StatusOr<OpenCheckpoint>(Departure& caller)>;

  // Sends what `open` gives, or ends with its error. `open_in`: where it runs; outlives the call. Call this or Fail()
  // once.
  void Start(Opener open, WorkPool* open_in);
  void Fail(const absl::Status& status) { FinishOnce(status); }

 private:
  DownloadStream(grpc::CallbackServerContext* context, WorkPool* pool) : context_(context), pool_(pool) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    client_->Go();
    FinishOnce(absl::CancelledError("the download was cancelled"));
    caller_.Go();
  }
  void OnDone() override;

  void InPool(WorkPool* pool, void (DownloadStream::*step)());
  void Open();
  void SendNext();
  bool finished();
  // Of a receiver that takes nothing any more.
  void Break();
  void FinishOnce(const absl::Status& status);

  grpc::CallbackServerContext* const context_;
  WorkPool* const pool_;
  // Itself thread-safe.
  Departure caller_;
  // The call owns itself until OnDone.
  std::shared_ptr<DownloadStream> self_;
  // Used by one step at a time.
  Opener open_;
  OpenCheckpoint checkpoint_;
  size_t file_ = 0;
  int64_t offset_ = 0;
  v1::FileChunk chunk_;

  // Itself thread-safe.
  std::unique_ptr<StallWatch::Stream> client_;

  Mutex mutex_;
  CondVar broken_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread that is in Break().
  std::thread::id breaking_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_
