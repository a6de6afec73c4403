// The daemon's own log: one line a message on stderr, "2026-01-31T12:00:00.123Z INFO text".
#ifndef AMPD_SERVER_MAIN_LOG_H_
#define AMPD_SERVER_MAIN_LOG_H_

#include "absl/strings/string_view.h"

namespace ampd {

enum class Severity { kInfo, kWarning, kError };

// Thread safe. Line breaks within `text` become spaces, other control characters '?'.
void Log(Severity severity, absl::string_view text);

// Routes gRPC's own messages here.
void CaptureGrpcLog();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_LOG_H_
