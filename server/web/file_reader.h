// One download of the service, for a client of the HTTP port that may leave before the first byte comes.
#ifndef AMPD_SERVER_WEB_FILE_READER_H_
#define AMPD_SERVER_WEB_FILE_READER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "server/web/backend.h"

namespace ampd {

// Used by one thread. Cancels the call where it ends before that does.
class FileReader {
 public:
  // `is_left`, asked some times a second until the first chunk comes: nobody waits any more; the call is cancelled
  // then. Later it is not asked, for a client may have no more to send and still read: writing to it tells.
  // `timeout`: of the whole call. `backend` outlives the reader.
  FileReader(Backend* backend, const Credentials& credentials, std::function<bool()> is_left,
             std::optional<absl::Duration> timeout = std::nullopt);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Begins the call; `prepare` is the stub's PrepareAsync of it. Call it once.
  template <typename Request>
  void Start(std::unique_ptr<grpc::ClientAsyncReader<v1::FileChunk>> (Backend::Stub::*prepare)(grpc::ClientContext*,
                                                                                               const Request&,
                                                                                               grpc::CompletionQueue*),
             const Request& request) {
    if (call_.stub() == nullptr) return;
    reader_ = (call_.stub()->*prepare)(call_.context(), request, &queue_);
    reader_->StartCall(nullptr);
    Await();
  }

  // The next chunk; false: there is none, and Finish() says why.
  bool Read(v1::FileChunk* chunk);

  // What was not read is left. The service's answer: OK once all was read.
  absl::Status Finish();

 private:
  // Until the operation under way is over: whether it went well.
  bool Await();

  const std::function<bool()> is_left_;
  Backend::OpenCall call_;
  grpc::CompletionQueue queue_;
  // Null until the call begins, and where it cannot.
  std::unique_ptr<grpc::ClientAsyncReader<v1::FileChunk>> reader_;
  bool has_begun_ = false;
  // No chunk comes any more.
  bool is_over_ = false;
  bool is_finished_ = false;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_FILE_READER_H_
