// One DownloadCheckpoint, DownloadArtifact or ExportModel call.
#ifndef AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_
#define AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/service/checkpoint_files.h"
#include "server/service/departure.h"
#include "server/service/work_pool.h"

namespace ampd {

// Sends files in chunks of at most 1 MiB, one held at a time; an empty file is one empty chunk. Frees itself once the
// call is over.
class DownloadStream : public grpc::ServerWriteReactor<v1::FileChunk>,
                       public std::enable_shared_from_this<DownloadStream> {
 public:
  // The files are read in `pool`, which outlives the call.
  static std::shared_ptr<DownloadStream> Create(WorkPool* pool);

  // Opens the files. `caller` is the call's: who opens for long should stop once they have gone.
  using Opener = std::function<absl::StatusOr<OpenCheckpoint>(Departure& caller)>;

  // Sends what `open` gives, or ends with its error. `open_in`: where it runs; outlives the call. Call this or Fail()
  // once.
  void Start(Opener open, WorkPool* open_in);
  void Fail(const absl::Status& status) { FinishOnce(status); }

 private:
  explicit DownloadStream(WorkPool* pool) : pool_(pool) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    FinishOnce(absl::CancelledError("the download was cancelled"));
    caller_.Go();
  }
  void OnDone() override { self_.reset(); }

  void InPool(WorkPool* pool, void (DownloadStream::*step)());
  void Open();
  void SendNext();
  bool finished();
  void FinishOnce(const absl::Status& status);

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

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DOWNLOAD_STREAM_H_
