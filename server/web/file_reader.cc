#include "server/web/file_reader.h"

#include <utility>

#include "server/service/grpc_status.h"

namespace ampd {
namespace {

// Between two looks whether somebody still waits.
constexpr absl::Duration kLook = absl::Milliseconds(250);

}  // namespace

FileReader::FileReader(Backend* backend, const Credentials& credentials, std::function<bool()> is_left,
                       std::optional<absl::Duration> timeout)
    : is_left_(std::move(is_left)), call_(backend, credentials) {
  if (timeout) call_.context()->set_deadline(absl::ToChronoTime(absl::Now() + *timeout));
}

FileReader::~FileReader() {
  if (!is_finished_) Finish().IgnoreError();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool FileReader::Read(v1::FileChunk* chunk) {
  if (reader_ == nullptr) return false;
  reader_->Read(chunk, nullptr);
  if (Await()) {
    has_begun_ = true;
    return true;
  }
  is_over_ = true;
  return false;
}

absl::Status FileReader::Finish() {
  is_finished_ = true;
  if (reader_ == nullptr) return Backend::Stopped();
  if (!is_over_) call_.context()->TryCancel();
  grpc::Status status;
  reader_->Finish(&status, nullptr);
  Await();
  return status.ok() ? absl::OkStatus() : FromGrpcStatus(status);
}

bool FileReader::Await() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kLook)) == grpc::CompletionQueue::TIMEOUT) {
    if (!has_begun_ && is_left_()) call_.context()->TryCancel();
  }
  return ok;
}

}  // namespace ampd
