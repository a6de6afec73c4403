#include "server/service/dataset_manifest.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "google/protobuf/util/time_util.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/upload_path.h"
#include "server/service/sha256.h"

namespace ampd {
namespace {

constexpr char kMagic[] = "ampd-dataset 1";
constexpr char kEnd[] = "end ";

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(absl::StrCat("is damaged: ", what)); }

}  // namespace

std::string HeaderLine(const DatasetHeader& header) {
  return absl::StrCat(kMagic, "\t", absl::ToUnixNanos(header.create_time), "\t", header.size_bytes, "\t",
                      header.file_count, "\t", absl::CEscape(header.user), "\t", header.content, "\n");
}

std::string FileLine(const v1::DatasetFile& file) {
  return absl::StrCat(file.size_bytes(), " ", file.sha256(), " ", file.path(), "\n");
}

DatasetHeader WholeHeader(DatasetHeader begun, const v1::Dataset& dataset) {
  Sha256Stream content;
  begun.size_bytes = 0;
  for (const v1::DatasetFile& file : dataset.files()) {
    content.Update(FileLine(file));
    begun.size_bytes += file.size_bytes();
  }
  begun.file_count = dataset.files_size();
  begun.content = content.HexDigest();
  return begun;
}

std::string ManifestText(const DatasetHeader& header, const v1::Dataset& dataset) {
  std::string text = HeaderLine(header);
  for (const v1::DatasetFile& file : dataset.files()) absl::StrAppend(&text, FileLine(file));
  const std::string checksum = Sha256Hex(text);
  absl::StrAppend(&text, kEnd, checksum, "\n");
  return text;
}

absl::StatusOr<DatasetHeader> ParseHeaderLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
  DatasetHeader header;
  int64_t nanos = 0;
  if (fields.size() != 6 || fields[0] != kMagic || !absl::SimpleAtoi(fields[1], &nanos) ||
      !absl::SimpleAtoi(fields[2], &header.size_bytes) || !absl::SimpleAtoi(fields[3], &header.file_count) ||
      header.size_bytes < 0 || header.file_count < 0 || !absl::CUnescape(fields[4], &header.user) ||
      (!fields[5].empty() && !IsUploadChecksum(fields[5]))) {
    return Damaged("its first line is none of a dataset");
  }
  header.create_time = absl::FromUnixNanos(nanos);
  header.content = std::string(fields[5]);
  return header;
}

absl::StatusOr<v1::DatasetFile> ParseFileLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  int64_t size = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &size) || size < 0 || !IsUploadChecksum(fields[1]) ||
      !WrongDatasetFile(fields[2]).empty()) {
    return Damaged("a line is none of a file");
  }
  v1::DatasetFile file;
  file.set_path(std::string(fields[2]));
  file.set_size_bytes(size);
  file.set_sha256(std::string(fields[1]));
  file.set_received_bytes(size);
  return file;
}

absl::StatusOr<v1::Dataset> ParseManifest(absl::string_view text) {
  const size_t end = text.rfind(kEnd);
  if (end == absl::string_view::npos || text.substr(end) != absl::StrCat(kEnd, Sha256Hex(text.substr(0, end)), "\n")) {
    return Damaged("it does not have its own checksum");
  }
  std::vector<absl::string_view> lines = absl::StrSplit(text.substr(0, end), '\n', absl::SkipEmpty());
  if (lines.empty()) return Damaged("it is empty");
  AMPD_RETURN_IF_ERROR(ParseHeaderLine(lines[0]).status());
  v1::Dataset dataset;
  for (size_t i = 1; i < lines.size(); ++i) {
    AMPD_ASSIGN_OR_RETURN(*dataset.add_files(), ParseFileLine(lines[i]));
  }
  return dataset;
}

v1::Dataset DatasetOf(const std::string& name, const DatasetHeader& header, bool committed) {
  v1::Dataset dataset;
  dataset.set_name(name);
  dataset.set_size_bytes(header.size_bytes);
  dataset.set_committed(committed);
  dataset.set_user(header.user);
  *dataset.mutable_create_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(header.create_time));
  return dataset;
}

}  // namespace ampd
