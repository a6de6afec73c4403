#include "client/checkpoint_download.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace ampd::client {
namespace {

constexpr char kManifest[] = "MANIFEST";
constexpr size_t kMaxManifestBytes = 1 << 20;

// Names of the files that MANIFEST lists, whose lines are "<sha256> <size> <name>", itself among them.
absl::StatusOr<std::vector<std::string>> FilesOf(Connection* connection, v1::DownloadCheckpointRequest request) {
  request.set_file(kManifest);
  std::string text;
  const absl::Status status = connection->DownloadCheckpoint(request, [&](const v1::FileChunk& chunk) {
    text += chunk.data();
    return text.size() <= kMaxManifestBytes ? absl::OkStatus() : absl::DataLossError("MANIFEST is too large");
  });
  if (!status.ok()) return status;
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    if (fields.size() != 3) return absl::DataLossError("MANIFEST cannot be read");
    names.push_back(fields[2]);
  }
  if (names.empty()) return absl::DataLossError("MANIFEST is empty");
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
