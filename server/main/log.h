// The daemon's own log on stderr, one line a message.
#ifndef AMPD_SERVER_MAIN_LOG_H_
#define AMPD_SERVER_MAIN_LOG_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ampd/v1/config.pb.h"
#include "server/events/log_subject.h"

namespace ampd {

enum class Severity { kInfo, kWarning, kError };

// Text: "2026-01-31T12:00:00.123Z INFO job 01hz... attempt 2: text". JSON: an object with "time", "severity", "job" and
// "attempt" where there are, and "text". Without the line's end, which no message can hold: in text, line breaks become
// spaces and other control characters '?'; in JSON they are escaped, and bytes that are no UTF-8 become U+FFFD.
std::string FormatLogLine(v1::ServerConfig::LogFormat format, absl::Time time, Severity severity,
                          absl::string_view text, const LogSubject& subject);

// Of all messages from now on. Default: TEXT.
void SetLogFormat(v1::ServerConfig::LogFormat format);

// Thread safe.
void Log(Severity severity, absl::string_view text, const LogSubject& subject = {});

// Routes gRPC's own messages here.
void CaptureGrpcLog();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_LOG_H_
