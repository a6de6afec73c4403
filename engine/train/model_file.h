// The file that a spec names as a model: one beneath a data root, or one that was uploaded.
#ifndef AMPD_ENGINE_TRAIN_MODEL_FILE_H_
#define AMPD_ENGINE_TRAIN_MODEL_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ampd::train {

// What comes before the checksum in the name of an uploaded file.
inline constexpr char kUploadPrefix[] = "upload:";

// Whether `path` names an uploaded file: it begins with kUploadPrefix. What follows need not be right.
bool IsUpload(absl::string_view path);

// The whole file. "upload:<sha256>", 64 lower-case hex digits, is `<upload_dir>/<sha256>`, and its bytes are checked
// against that; every other name is a path as of data::OpenBeneath.
//
// Errors name `path`. INVALID_ARGUMENT: it begins with "upload:" and no checksum follows. NOT_FOUND: there is no such
// file or upload, or `upload_dir` is empty. DATA_LOSS: an upload has other bytes than its name says, or the file cannot
// be read to its end. OUT_OF_RANGE: it has more than `max_bytes`. Others are OpenBeneath's.
absl::StatusOr<std::string> ReadModelFile(absl::string_view path, absl::Span<const std::string> data_roots,
                                          absl::string_view upload_dir, int64_t max_bytes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_MODEL_FILE_H_
