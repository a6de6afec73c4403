// What a dataset's MANIFEST, and the JOURNAL of one that is not whole, say: text, the same lines in both.
//
//   ampd-dataset 1 <TAB> creation, ns since 1970 <TAB> bytes <TAB> files <TAB> user, C-escaped <TAB> sha256 of the next
//   lines; empty in a journal
//   <bytes> <sha256> <path>            one a file; in a journal the last of a path counts
//   end <sha256 of all before>         of a MANIFEST
#ifndef AMPD_SERVER_SERVICE_DATASET_MANIFEST_H_
#define AMPD_SERVER_SERVICE_DATASET_MANIFEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.pb.h"

namespace ampd {

struct DatasetHeader {
  absl::Time create_time;
  // Both 0 in a journal.
  int64_t size_bytes = 0;
  int64_t file_count = 0;
  std::string user;
  // SHA-256 of the lines of its files, by path: of what it is, whoever sent it and when. Empty in a journal.
  std::string content;
};

// Lines end with '\n' here.
std::string HeaderLine(const DatasetHeader& header);
std::string FileLine(const v1::DatasetFile& file);

// `begun` with what the files of `dataset` add to it.
DatasetHeader WholeHeader(DatasetHeader begun, const v1::Dataset& dataset);

// A MANIFEST: the header, the files and the end.
std::string ManifestText(const DatasetHeader& header, const v1::Dataset& dataset);

// `line` is without its '\n'. DATA_LOSS for what is none.
absl::StatusOr<DatasetHeader> ParseHeaderLine(absl::string_view line);
absl::StatusOr<v1::DatasetFile> ParseFileLine(absl::string_view line);

// The files of a MANIFEST. DATA_LOSS where it is damaged: every byte of it counts.
absl::StatusOr<v1::Dataset> ParseManifest(absl::string_view text);

// Of header and name, without files; whole where `committed`.
v1::Dataset DatasetOf(const std::string& name, const DatasetHeader& header, bool committed);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DATASET_MANIFEST_H_
