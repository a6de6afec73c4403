// Names of uploaded files in specs: "upload:<sha256>".
#ifndef AMPD_PROTO_SPEC_UPLOAD_PATH_H_
#define AMPD_PROTO_SPEC_UPLOAD_PATH_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ampd {

inline constexpr char kUploadScheme[] = "upload:";

// Whether `path` names an uploaded file, rightly or not, rather than one beneath a data root.
bool NamesUpload(absl::string_view path);

// Whether `text` is a SHA-256 as uploads are named by it: 64 hex digits, letters in lower case.
bool IsUploadChecksum(absl::string_view text);

// The checksum in "upload:<sha256>"; empty where `path` is not that.
std::string UploadChecksum(absl::string_view path);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_UPLOAD_PATH_H_
