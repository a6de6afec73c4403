// Files that the API gives: of checkpoints, whole or in part, models made of them, and artifacts. One chunk of at most
// 1 MiB is held at a time; how long a slow client may take is the exchange's (server/http/exchange.h).
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "server/service/sha256.h"
#include "server/service/try_again.h"
#include "server/web/api.h"
#include "server/web/file_reader.h"

namespace ampd {
namespace {

using Service = Backend::Stub;

constexpr int kDownloadsOfAClient = 8;
constexpr absl::Duration kManifestPatience = absl::Seconds(30);

// Data, and nothing that runs, whatever the job says.
HttpResponse FileHead(const char* type) {
  HttpResponse head;
  head.content_type = type == nullptr ? "application/octet-stream" : type;
  head.headers = {{"Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'"},
                  {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (type == nullptr) head.headers.emplace_back("Content-Disposition", "attachment");
  return head;
}

// Safe to show; null: to be saved as a file.
const char* ImageTypeOf(absl::string_view bytes) {
  if (absl::StartsWith(bytes, absl::string_view("\x89PNG\r\n\x1a\n", 8))) return "image/png";
  if (absl::StartsWith(bytes, "\xFF\xD8\xFF")) return "image/jpeg";
  if (absl::StartsWith(bytes, "GIF87a") || absl::StartsWith(bytes, "GIF89a")) return "image/gif";
  return nullptr;
}

// Answers with what `reader` gives. `begin`: gets the first chunk and sends the head; an error ends the download.
absl::Status PassOn(FileReader* reader, HttpExchange* exchange,
                    absl::FunctionRef<absl::Status(const v1::FileChunk&)> begin) {
  v1::FileChunk chunk;
  absl::Status status;
  while (status.ok() && reader->Read(&chunk)) {
    if (exchange->status() == 0) status = begin(chunk);
    if (!status.ok()) break;
    const bool only_head = exchange->request().method == "HEAD";
    if (only_head || !exchange->Write(chunk.data())) status = absl::CancelledError("nobody takes the rest");
  }
  const absl::Status ended = reader->Finish();
  return status.ok() ? ended : status;
}

std::string TagOf(const ListedFile& file) { return absl::StrCat("\"", file.checksum, "\""); }

HttpResponse CheckpointFileHead(const ListedFile& file, const std::optional<ByteRange>& range) {
  HttpResponse head = FileHead(nullptr);
  head.headers.emplace_back("ETag", TagOf(file));
  head.headers.emplace_back("Accept-Ranges", "bytes");
  if (!range) return head;
  head.status = 206;
  head.headers.emplace_back(
      "Content-Range", absl::StrCat("bytes ", range->offset, "-", range->offset + range->length - 1, "/", file.size));
  return head;
}

HttpResponse NoSuchRange(const absl::Status& status, const ListedFile& file) {
  HttpResponse response = ErrorResponse(status, 416);
  response.headers.emplace_back("Content-Range", absl::StrCat("bytes */", file.size));
  return response;
}

using Export = v1::ExportModelRequest;

absl::StatusOr<Export> ExportRequestOf(const Query& query) {
  static const std::map<std::string, Export::Form> kForms = {{"safetensors", Export::SAFETENSORS},
                                                             {"onnx", Export::ONNX}};
  static const std::map<std::string, Export::Dtype> kDtypes = {
      {"fp32", Export::FLOAT32}, {"fp16", Export::FLOAT16}, {"bf16", Export::BFLOAT16}};
  Export request;
  const auto form = kForms.find(absl::AsciiStrToLower(query.Text("form")));
  if (form == kForms.end()) return InvalidFields({{"form", "must be safetensors or onnx"}});
  request.set_form(form->second);
  if (query.Has("dtype")) {
    const auto dtype = kDtypes.find(absl::AsciiStrToLower(query.Text("dtype")));
    if (dtype == kDtypes.end()) return InvalidFields({{"dtype", "must be fp32, fp16 or bf16"}});
    request.set_dtype(dtype->second);
  }
  AMPD_ASSIGN_OR_RETURN(const bool ema, query.Flag("ema"));
  request.set_ema(ema);
  request.set_network(query.Text("network"));
  return request;
}

// "01hq-step-000000500-generator.onnx", for names of networks that files may have.
std::string ExportedName(const Export& request, const v1::FileChunk& chunk, const std::string& job_id) {
  const bool has_network = !request.network().empty() && IsMadeOf(request.network(), "_-.");
  return absl::StrCat(job_id, "-", chunk.checkpoint(), has_network ? absl::StrCat("-", request.network()) : "",
                      request.form() == Export::ONNX ? ".onnx" : ".safetensors");
}

v1::DownloadCheckpointRequest RequestFor(const std::string& job, const std::string& checkpoint,
                                         const std::string& file) {
  v1::DownloadCheckpointRequest request;
  request.set_job_id(job);
  request.set_checkpoint(checkpoint);
  request.set_file(file);
  return request;
}

}  // namespace

HttpResponse AttachmentHead(const char* type, const std::string& name) {
  HttpResponse head = FileHead(type);
  head.headers.emplace_back("Content-Disposition", absl::StrCat("attachment; filename=\"", name, "\""));
  head.headers.emplace_back("Accept-Ranges", "none");
  return head;
}

void SayFromMirror(HttpResponse* head) { head->headers.emplace_back("Ampd-From-Mirror", "true"); }

std::function<bool()> JsonApi::LeftBy(const Call& call) {
  return [exchange = &call.exchange] { return exchange->IsLeft(); };
}

absl::StatusOr<std::unique_ptr<Slots::Lease>> JsonApi::TakeDownload(const Call& call) {
  AMPD_ASSIGN_OR_RETURN(const std::string client, ClientOf(call.exchange.request(), call.credentials));
  std::unique_ptr<Slots::Lease> slot = downloads_.Take(client, kDownloadsOfAClient);
  if (slot != nullptr) return slot;
  return WithRetryInfo(absl::UnavailableError("too many downloads are under way; try again"), absl::Seconds(5));
}

absl::StatusOr<JsonApi::Listing> JsonApi::FilesOf(const Call& call) {
  FileReader reader(&backend_, call.credentials, LeftBy(call), kManifestPatience);
  reader.Start(&Service::PrepareAsyncDownloadCheckpoint, RequestFor(call.arguments[0], call.arguments[1], kManifest));
  Listing listing;
  std::string text;
  v1::FileChunk chunk;
  // The service gives none that is larger than it may be.
  while (reader.Read(&chunk)) {
    listing.name = chunk.checkpoint();
    absl::StrAppend(&text, chunk.data());
  }
  AMPD_RETURN_IF_ERROR(reader.Finish());
  AMPD_ASSIGN_OR_RETURN(listing.files, ParseCheckpointManifest(text));
  listing.files.push_back({Sha256Hex(text), static_cast<int64_t>(text.size()), kManifest});
  return listing;
}

absl::StatusOr<HttpResponse> JsonApi::GetCheckpoint(Call& call) {
  const std::string format = absl::AsciiStrToLower(call.query.Text("format"));
  if (format == "tar") return GetCheckpointArchive(call);
  if (!format.empty() && format != "json") return InvalidFields({{"format", "must be json or tar"}});
  AMPD_ASSIGN_OR_RETURN(const Listing listing, FilesOf(call));
  const auto write = [](std::string* out, const ListedFile& file) {
    absl::StrAppend(out, "{\"name\": ", QuoteJson(file.name), ", \"size_bytes\": ", file.size, ", \"sha256\": \"",
                    file.checksum, "\"}");
  };
  return JsonResponse(absl::StrCat("{\"name\": ", QuoteJson(listing.name), ", \"files\": [",
                                   absl::StrJoin(listing.files, ",\n", write), "]}\n"));
}

absl::StatusOr<HttpResponse> JsonApi::GetCheckpointFile(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const auto slot, TakeDownload(call));
  AMPD_ASSIGN_OR_RETURN(const Listing listing, FilesOf(call));
  const auto file =
      absl::c_find_if(listing.files, [&](const ListedFile& one) { return one.name == call.arguments[2]; });
  if (file == listing.files.end()) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", listing.name, " has no such file"));
  }
  const absl::StatusOr<std::optional<ByteRange>> range = RangeOf(call.exchange.request(), file->size, TagOf(*file));
  if (!range.ok()) return NoSuchRange(range.status(), *file);
  return SendCheckpointFile(call, listing.name, *file, *range);
}

absl::StatusOr<HttpResponse> JsonApi::SendCheckpointFile(Call& call, const std::string& checkpoint,
                                                         const ListedFile& file,
                                                         const std::optional<ByteRange>& range) {
  HttpResponse head = CheckpointFileHead(file, range);
  const int64_t length = range ? range->length : file.size;
  v1::DownloadCheckpointRequest request = RequestFor(call.arguments[0], checkpoint, file.name);
  request.set_offset(range ? range->offset : 0);
  request.set_length(range ? length : 0);
  const auto begin = [&](const v1::FileChunk& chunk) -> absl::Status {
    if (chunk.file_size() != file.size) return absl::AbortedError("the checkpoint was written anew; try again");
    if (chunk.from_mirror()) SayFromMirror(&head);
    call.exchange.Begin(head, length);
    return absl::OkStatus();
  };
  FileReader reader(&backend_, call.credentials, LeftBy(call));
  reader.Start(&Service::PrepareAsyncDownloadCheckpoint, request);
  AMPD_RETURN_IF_ERROR(PassOn(&reader, &call.exchange, begin));
  return absl::InternalError("no file came");
}

absl::StatusOr<HttpResponse> JsonApi::ExportModel(Call& call) {
  AMPD_ASSIGN_OR_RETURN(Export request, ExportRequestOf(call.query));
  AMPD_ASSIGN_OR_RETURN(const auto slot, TakeDownload(call));
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  request.set_job_id(job.id());
  request.set_checkpoint(call.arguments[1]);
  FileReader reader(&backend_, call.credentials, LeftBy(call));
  reader.Start(&Service::PrepareAsyncExportModel, request);
  AMPD_RETURN_IF_ERROR(PassOn(&reader, &call.exchange, [&](const v1::FileChunk& chunk) {
    call.exchange.Begin(AttachmentHead("application/octet-stream", ExportedName(request, chunk, job.id())),
                        chunk.file_size());
    return absl::OkStatus();
  }));
  return absl::InternalError("no file came");
}

absl::StatusOr<HttpResponse> JsonApi::GetArtifact(Call& call) {
  v1::DownloadArtifactRequest request;
  request.set_job_id(call.arguments[0]);
  request.set_name(call.arguments[1]);
  FileReader reader(&backend_, call.credentials, LeftBy(call));
  reader.Start(&Service::PrepareAsyncDownloadArtifact, request);
  AMPD_RETURN_IF_ERROR(PassOn(&reader, &call.exchange, [&](const v1::FileChunk& chunk) {
    call.exchange.Begin(FileHead(ImageTypeOf(chunk.data())), chunk.file_size());
    return absl::OkStatus();
  }));
  return absl::InternalError("no file came");
}

}  // namespace ampd
