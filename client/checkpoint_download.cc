#include "client/checkpoint_download.h"

#include <map>
#include <string>
#include <vector>

#include "client/checkpoint_manifest.h"

namespace ampd::client {
namespace {

// Names of the files that MANIFEST lists, and itself.
absl::StatusOr<std::vector<std::string>> FilesOf(Connection* connection, v1::DownloadCheckpointRequest request) {
  request.set_file(kManifest);
  std::string text;
  const absl::Status status = connection->DownloadCheckpoint(request, [&](const v1::FileChunk& chunk) {
    text += chunk.data();
    return text.size() <= kMaxManifestBytes ? absl::OkStatus() : absl::DataLossError("MANIFEST is too large");
  });
  if (!status.ok()) return status;
  const absl::StatusOr<std::map<std::string, FileContent>> files = ParseManifest(text);
  if (!files.ok()) return files.status();
  std::vector<std::string> names;
  for (const auto& [name, content] : *files) names.push_back(name);
  names.push_back(kManifest);
  return names;
}

}  // namespace

absl::Status FetchCheckpoint(Connection* connection, const v1::DownloadCheckpointRequest& request,
                             CheckpointWriter* writer) {
  return connection->DownloadCheckpoint(request, [&](const v1::FileChunk& chunk) { return writer->Add(chunk); });
}

absl::Status ResumeCheckpoint(Connection* connection, const v1::DownloadCheckpointRequest& request,
                              CheckpointWriter* writer) {
  v1::DownloadCheckpointRequest part = request;
  // Of another checkpoint not a byte fits.
  part.set_checkpoint(writer->checkpoint());
  if (writer->missing_bytes() > 0) {
    part.set_file(writer->file());
    part.set_offset(writer->written());
    if (absl::Status status = FetchCheckpoint(connection, part, writer); !status.ok()) return status;
    part.clear_offset();
  }
  const absl::StatusOr<std::vector<std::string>> names = FilesOf(connection, part);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (writer->Has(name)) continue;
    part.set_file(name);
    if (absl::Status status = FetchCheckpoint(connection, part, writer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ampd::client
