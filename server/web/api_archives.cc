// Checkpoints as one file each.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/web/api.h"

namespace ampd {
namespace {

using Service = Backend::Stub;

HttpResponse ArchiveHead(const std::string& name) {
  HttpResponse head;
  head.content_type = "application/x-tar";
  head.headers = {{"Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'"},
                  {"Cross-Origin-Resource-Policy", "same-origin"},
                  {"Content-Disposition", absl::StrCat("attachment; filename=\"", name, ".tar\"")},
                  {"Accept-Ranges", "none"}};
  return head;
}

v1::DownloadCheckpointRequest RequestFor(const Router::Arguments& arguments, const ListedFile& file) {
  v1::DownloadCheckpointRequest request;
  request.set_job_id(arguments[0]);
  request.set_checkpoint(arguments[1]);
  request.set_file(file.name);
  return request;
}

}  // namespace

absl::StatusOr<absl::Time> JsonApi::CheckpointTime(const Call& call) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(call.arguments[0]);
  AMPD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list,
                        (backend_.Call<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
                            call.credentials, &Service::ListCheckpoints, request)));
  const auto found =
      absl::c_find_if(list.checkpoints(), [&](const v1::Checkpoint& one) { return one.name() == call.arguments[1]; });
  if (found == list.checkpoints().end()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint ", call.arguments[1]));
  }
  return absl::FromUnixSeconds(found->time().seconds());
}

absl::StatusOr<HttpResponse> JsonApi::GetCheckpointArchive(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const auto slot, TakeDownload(call));
  AMPD_ASSIGN_OR_RETURN(const std::vector<ListedFile> files, FilesOf(call));
  AMPD_ASSIGN_OR_RETURN(const absl::Time time, CheckpointTime(call));
  std::vector<TarEntry> entries;
  for (const ListedFile& file : files) {
    AMPD_ASSIGN_OR_RETURN(TarEntry entry, MakeTarEntry(call.arguments[1], file.name, file.size, time));
    entries.push_back(std::move(entry));
  }
  const auto send_head = [&] { call.exchange.Begin(ArchiveHead(call.arguments[1]), TarBytes(entries)); };
  if (call.exchange.request().method == "HEAD") return send_head(), HttpResponse();
  for (size_t i = 0; i < files.size(); ++i) {
    const auto begin = [&] {
      if (call.exchange.status() == 0) send_head();
      return call.exchange.Write(entries[i].header);
    };
    AMPD_RETURN_IF_ERROR(SendEntry(call, files[i], begin));
  }
  call.exchange.Write(TarEnd());
  return HttpResponse();
}

absl::Status JsonApi::SendEntry(Call& call, const ListedFile& file, absl::FunctionRef<bool()> begin) {
  Backend::OpenCall download(&backend_, call.credentials);
  if (download.stub() == nullptr) return Backend::Stopped();
  const auto reader = download.stub()->DownloadCheckpoint(download.context(), RequestFor(call.arguments, file));
  v1::FileChunk chunk;
  // Its first chunk comes once the file was compared with its checksum; an empty file has none.
  const bool is_empty = !reader->Read(&chunk);
  if (is_empty) AMPD_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
  int64_t left = file.size;
  bool goes_on = begin();
  for (bool has_chunk = !is_empty; goes_on && has_chunk; has_chunk = goes_on && reader->Read(&chunk)) {
    left -= static_cast<int64_t>(chunk.data().size());
    goes_on = left >= 0 && call.exchange.Write(chunk.data());
  }
  if (!goes_on) download.context()->TryCancel();
  if (!is_empty) AMPD_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
  if (left != 0) return absl::AbortedError(absl::StrCat(file.name, " was written anew; try again"));
  if (!call.exchange.Write(TarPadding(file.size))) return absl::CancelledError("nobody takes the rest");
  return absl::OkStatus();
}

}  // namespace ampd
