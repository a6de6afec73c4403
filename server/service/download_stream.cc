#include "server/service/download_stream.h"

#include <algorithm>
#include <utility>

#include "server/service/grpc_status.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

}  // namespace

std::shared_ptr<DownloadStream> DownloadStream::Create(grpc::CallbackServerContext* context, WorkPool* pool,
                                                       StallWatch* stalls) {
  std::shared_ptr<DownloadStream> stream(new DownloadStream(context, pool));
  stream->self_ = stream;
  stream->client_ = stalls->Watch([weak = std::weak_ptr(stream)] {
    if (const auto stalled = weak.lock()) stalled->Break();
  });
  return stream;
}

void DownloadStream::InPool(WorkPool* pool, void (DownloadStream::*step)()) {
  if (pool->Post([stream = shared_from_this(), step] { (stream.get()->*step)(); })) return;
  FinishOnce(TryAgain("too many downloads at once; try again", absl::Seconds(1)));
}

void DownloadStream::Start(Opener open, WorkPool* open_in) {
  open_ = std::move(open);
  InPool(open_in, &DownloadStream::Open);
}

void DownloadStream::Open() {
  // Nobody is left for whom to open them.
  if (finished()) return;
  absl::StatusOr<OpenCheckpoint> opened = open_(caller_);
  if (!opened.ok()) return FinishOnce(opened.status());
  checkpoint_ = *std::move(opened);
  offset_ = checkpoint_.begin;
  SendNext();
}

bool DownloadStream::finished() {
  const MutexLock lock(&mutex_);
  return finished_;
}

void DownloadStream::SendNext() {
  if (finished()) return;
  if (file_ == checkpoint_.files.size()) return FinishOnce(absl::OkStatus());
  const CheckpointFile& file = checkpoint_.files[file_];
  const int64_t end = checkpoint_.end.value_or(file.size);
  absl::StatusOr<std::string> bytes = ReadChunk(file, offset_, std::min(kChunkBytes, end - offset_));
  if (!bytes.ok()) return FinishOnce(bytes.status());
  chunk_.set_checkpoint(checkpoint_.name);
  chunk_.set_from_mirror(checkpoint_.from_mirror);
  chunk_.set_file(file.name);
  chunk_.set_file_size(file.size);
  chunk_.set_offset(offset_);
  offset_ += static_cast<int64_t>(bytes->size());
  chunk_.set_data(*std::move(bytes));
  if (offset_ == end) {
    ++file_;
    offset_ = 0;
  }
  client_->Wait();
  // Not after Finish: a cancelled call takes no more writes.
  const MutexLock lock(&mutex_);
  if (!finished_) StartWrite(&chunk_);
}

// An end that is told would wait behind what is not taken. Without the lock, since OnCancel may be called within.
void DownloadStream::Break() {
  {
    const MutexLock lock(&mutex_);
    if (finished_) return;
    breaking_ = std::this_thread::get_id();
  }
  context_->TryCancel();
  const MutexLock lock(&mutex_);
  breaking_ = std::thread::id();
  broken_.NotifyAll();
}

void DownloadStream::OnDone() {
  {
    // The context goes with this call.
    MutexLock lock(&mutex_);
    const std::thread::id none;
    while (breaking_ != none && breaking_ != std::this_thread::get_id()) broken_.Wait(&mutex_);
  }
  self_.reset();
}

void DownloadStream::OnWriteDone(bool ok) {
  client_->Go();
  if (!ok) return FinishOnce(absl::CancelledError("the receiver is gone"));
  InPool(pool_, &DownloadStream::SendNext);
}

void DownloadStream::FinishOnce(const absl::Status& status) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  Finish(ToGrpcStatus(status));
}

}  // namespace ampd
