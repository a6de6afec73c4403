// Checkpoints as one file each.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "server/web/api.h"
#include "server/web/file_reader.h"

namespace ampd {
namespace {

using Service = Backend::Stub;

absl::Status WrittenAnew(absl::string_view checkpoint) {
  return absl::AbortedError(absl::StrCat(checkpoint, " was written anew; try again"));
}

}  // namespace

// Puts a checkpoint's files, as one download gives them, into an archive whose length the head tells before.
class JsonApi::ArchiveWriter {
 public:
  // `begin` sends the head. All outlive the writer.
  ArchiveWriter(HttpExchange* exchange, const std::string* checkpoint, const std::vector<ListedFile>* files,
                const std::vector<TarEntry>* entries, absl::FunctionRef<void(bool from_mirror)> begin)
      : exchange_(exchange), checkpoint_(checkpoint), files_(files), entries_(entries), begin_(begin) {}

  // ABORTED where it is not of the files that the head told of; CANCELLED: nobody takes the rest.
  absl::Status Take(const v1::FileChunk& chunk) {
    if (left_ == 0) AMPD_RETURN_IF_ERROR(BeginFile(chunk));
    const auto bytes = static_cast<int64_t>(chunk.data().size());
    if (chunk.file() != (*files_)[next_ - 1].name || bytes > left_) return WrittenAnew(*checkpoint_);
    left_ -= bytes;
    AMPD_RETURN_IF_ERROR(Write(chunk.data()));
    return left_ == 0 ? Write(TarPadding((*files_)[next_ - 1].size)) : absl::OkStatus();
  }

  absl::Status End() {
    if (left_ != 0 || next_ != files_->size()) return WrittenAnew(*checkpoint_);
    return Write(TarEnd());
  }

 private:
  // Before its header leaves: that tells the size.
  absl::Status BeginFile(const v1::FileChunk& chunk) {
    if (next_ == files_->size()) return WrittenAnew(*checkpoint_);
    const ListedFile& file = (*files_)[next_];
    if (chunk.file() != file.name || chunk.file_size() != file.size) return WrittenAnew(*checkpoint_);
    if (next_ == 0) begin_(chunk.from_mirror());
    left_ = file.size;
    return Write((*entries_)[next_++].header);
  }

  absl::Status Write(absl::string_view bytes) {
    return exchange_->Write(bytes) ? absl::OkStatus() : absl::CancelledError("nobody takes the rest");
  }

  HttpExchange* const exchange_;
  const std::string* const checkpoint_;
  const std::vector<ListedFile>* const files_;
  const std::vector<TarEntry>* const entries_;
  const absl::FunctionRef<void(bool from_mirror)> begin_;
  // Files that were begun; of the last, bytes to come.
  size_t next_ = 0;
  int64_t left_ = 0;
};

absl::StatusOr<absl::Time> JsonApi::CheckpointTime(const Call& call, const std::string& checkpoint) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(call.arguments[0]);
  AMPD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list,
                        (backend_.Call<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
                            call.credentials, &Service::ListCheckpoints, request)));
  const auto found =
      absl::c_find_if(list.checkpoints(), [&](const v1::Checkpoint& one) { return one.name() == checkpoint; });
  if (found == list.checkpoints().end()) return absl::Now();
  return absl::FromUnixSeconds(found->time().seconds());
}

absl::StatusOr<HttpResponse> JsonApi::GetCheckpointArchive(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const auto slot, TakeDownload(call));
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  AMPD_ASSIGN_OR_RETURN(const Listing listing, FilesOf(call));
  AMPD_ASSIGN_OR_RETURN(const absl::Time time, CheckpointTime(call, listing.name));
  std::vector<TarEntry> entries;
  for (const ListedFile& file : listing.files) {
    AMPD_ASSIGN_OR_RETURN(TarEntry entry, MakeTarEntry(listing.name, file.name, file.size, time));
    entries.push_back(std::move(entry));
  }
  const std::string saved_as = absl::StrCat(job.id(), "-", listing.name, ".tar");
  const auto send_head = [&](bool from_mirror) {
    HttpResponse head = AttachmentHead("application/x-tar", saved_as);
    if (from_mirror) SayFromMirror(&head);
    call.exchange.Begin(head, TarBytes(entries));
  };
  if (call.exchange.request().method == "HEAD") return send_head(false), HttpResponse();
  ArchiveWriter writer(&call.exchange, &listing.name, &listing.files, &entries, send_head);
  AMPD_RETURN_IF_ERROR(SendArchive(call, listing.name, &writer));
  return HttpResponse();
}

absl::Status JsonApi::SendArchive(const Call& call, const std::string& checkpoint, ArchiveWriter* writer) {
  v1::DownloadCheckpointRequest request;
  request.set_job_id(call.arguments[0]);
  request.set_checkpoint(checkpoint);
  // All files by one call: they are of one writing, since it has them open before it sends any, and its place among
  // the transfers is taken once, before the first byte.
  FileReader reader(&backend_, call.credentials, LeftBy(call));
  reader.Start(&Service::PrepareAsyncDownloadCheckpoint, request);
  v1::FileChunk chunk;
  absl::Status status;
  while (status.ok() && reader.Read(&chunk)) status = writer->Take(chunk);
  const absl::Status ended = reader.Finish();
  if (!status.ok()) return status;
  AMPD_RETURN_IF_ERROR(ended);
  return writer->End();
}

}  // namespace ampd
