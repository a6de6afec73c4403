#include "server/service/dataset_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/service/grpc_status.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

absl::Status TooMany() { return TryAgain("too many uploads at once; try again", absl::Seconds(1)); }

}  // namespace

std::shared_ptr<DatasetStream> DatasetStream::Start(DatasetStore* store, const Pools& pools, std::string user,
                                                    v1::Dataset* response) {
  std::shared_ptr<DatasetStream> stream(new DatasetStream(store, pools, std::move(user), response));
  stream->self_ = stream;
  stream->client_ = pools.stalls->Watch([weak = std::weak_ptr(stream), silence = pools.stalls->Silence()] {
    if (const auto silent = weak.lock()) silent->FinishOnce(silence);
  });
  stream->ReadNext();
  return stream;
}

void DatasetStream::OnReadDone(bool ok) {
  client_->Go();
  if (pools_.pieces->Post([stream = shared_from_this(), ok] { stream->Take(!ok); })) return;
  FinishOnce(TooMany());
}

bool DatasetStream::finished() {
  const MutexLock lock(&mutex_);
  return finished_;
}

void DatasetStream::Take(bool ended) {
  if (finished()) return;
  if (ended) return End();
  const absl::Status status = TakeMessage();
  if (!status.ok()) return FinishOnce(status);
  if (!request_.commit()) return ReadNext();
  if (!pools_.commits->Post([stream = shared_from_this()] { stream->Commit(); })) FinishOnce(TooMany());
}

absl::Status DatasetStream::TakeMessage() {
  if (upload_ == nullptr) {
    name_ = request_.name();
    AMPD_ASSIGN_OR_RETURN(upload_, store_->Begin(name_, user_));
  } else if (!request_.name().empty() && request_.name() != name_) {
    return InvalidFields({{"name", "is not that of the first message"}});
  }
  if (request_.data().size() > kMaxChunkBytes) {
    return InvalidFields(
        {{"data", absl::StrCat(request_.data().size(), " bytes, at most ", kMaxChunkBytes, " a message")}});
  }
  if (!request_.file().empty()) {
    v1::DatasetFile file;
    file.set_path(request_.file());
    file.set_size_bytes(request_.file_size());
    file.set_sha256(request_.file_sha256());
    AMPD_RETURN_IF_ERROR(upload_->BeginFile(file, request_.offset()));
  }
  return upload_->Append(request_.offset(), request_.data());
}

void DatasetStream::Commit() {
  const absl::StatusOr<v1::Dataset> dataset = upload_->Commit();
  if (!dataset.ok()) return FinishOnce(dataset.status());
  Answer(*dataset);
}

void DatasetStream::End() {
  if (upload_ == nullptr) return FinishOnce(InvalidFields({{"name", "required in the first message"}}));
  Answer(upload_->Describe());
}

void DatasetStream::ReadNext() {
  client_->Wait();
  // Not after Finish: a cancelled call takes no more reads.
  const MutexLock lock(&mutex_);
  if (!finished_) StartRead(&request_);
}

void DatasetStream::Answer(const v1::Dataset& dataset) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  *response_ = dataset;
  Finish(grpc::Status::OK);
}

void DatasetStream::FinishOnce(const absl::Status& status) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  Finish(ToGrpcStatus(status));
}

}  // namespace ampd
