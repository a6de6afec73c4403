#include "server/service/upload_stream.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "proto/spec/upload_path.h"
#include "server/service/grpc_status.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

}  // namespace

std::shared_ptr<UploadStream> UploadStream::Start(UploadStore* store, WorkPool* pool, StallWatch* stalls,
                                                  std::string user, v1::UploadModelResponse* response) {
  std::shared_ptr<UploadStream> stream(new UploadStream(store, pool, std::move(user), response));
  stream->self_ = stream;
  stream->client_ = stalls->Watch([weak = std::weak_ptr(stream), silence = stalls->Silence()] {
    if (const auto silent = weak.lock()) silent->FinishOnce(silence);
  });
  stream->ReadNext();
  return stream;
}

void UploadStream::OnReadDone(bool ok) {
  client_->Go();
  if (pool_->Post([stream = shared_from_this(), ok] { stream->Take(!ok); })) return;
  FinishOnce(TryAgain("too many uploads at once; try again", absl::Seconds(1)));
}

bool UploadStream::finished() {
  const MutexLock lock(&mutex_);
  return finished_;
}

void UploadStream::Take(bool ended) {
  if (finished()) return;
  if (ended) return End();
  const absl::StatusOr<bool> there = TakeChunk();
  if (!there.ok()) {
    upload_.reset();
    return FinishOnce(there.status());
  }
  if (!*there) ReadNext();
}

absl::StatusOr<bool> UploadStream::TakeChunk() {
  if (upload_ == nullptr) {
    checksum_ = request_.sha256();
    if (const std::optional<int64_t> size = store_->Use(checksum_)) {
      Answer(*size);
      return true;
    }
    AMPD_ASSIGN_OR_RETURN(upload_, store_->Begin(checksum_, user_));
  } else if (!request_.sha256().empty() && request_.sha256() != checksum_) {
    return InvalidFields({{"sha256", "is not that of the first message"}});
  }
  if (request_.data().size() > kMaxChunkBytes) {
    return InvalidFields(
        {{"data", absl::StrCat(request_.data().size(), " bytes, at most ", kMaxChunkBytes, " a message")}});
  }
  AMPD_RETURN_IF_ERROR(upload_->Append(request_.data()));
  return false;
}

void UploadStream::End() {
  if (upload_ == nullptr) return FinishOnce(InvalidFields({{"sha256", "required in the first message"}}));
  const absl::StatusOr<int64_t> size = upload_->Finish();
  upload_.reset();
  if (!size.ok()) return FinishOnce(size.status());
  Answer(*size);
}

void UploadStream::ReadNext() {
  client_->Wait();
  // Not after Finish: a cancelled call takes no more reads.
  const MutexLock lock(&mutex_);
  if (!finished_) StartRead(&request_);
}

void UploadStream::Answer(int64_t size) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  response_->set_path(absl::StrCat(kUploadScheme, checksum_));
  response_->set_size_bytes(size);
  Finish(grpc::Status::OK);
}

void UploadStream::FinishOnce(const absl::Status& status) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  Finish(ToGrpcStatus(status));
}

}  // namespace ampd
