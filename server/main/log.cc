#include "server/main/log.h"

#include <grpc/support/log.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/spec/text.h"

namespace ampd {
namespace {

const char* NameOf(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "INFO";
    case Severity::kWarning:
      return "WARNING";
    case Severity::kError:
      return "ERROR";
  }
  return "ERROR";
}

Severity SeverityOf(gpr_log_severity severity) {
  // gRPC reports as errors what its callers are told anyway, such as a client that went away.
  return severity == GPR_LOG_SEVERITY_ERROR ? Severity::kWarning : Severity::kInfo;
}

std::string FormatText(const std::string& time, Severity severity, absl::string_view text, const LogSubject& subject) {
  std::string line = absl::StrCat(time, " ", NameOf(severity), " ");
  if (!subject.job_id.empty()) absl::StrAppend(&line, "job ", subject.job_id, " ");
  if (subject.attempt != 0) absl::StrAppend(&line, "attempt ", subject.attempt, " ");
  absl::StrAppend(&line, text);
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

std::string FormatJson(const std::string& time, Severity severity, absl::string_view text, const LogSubject& subject) {
  std::string line = absl::StrCat(R"({"time":")", time, R"(","severity":")", NameOf(severity), "\"");
  if (!subject.job_id.empty()) absl::StrAppend(&line, R"(,"job":)", QuoteJson(subject.job_id));
  if (subject.attempt != 0) absl::StrAppend(&line, R"(,"attempt":)", subject.attempt);
  return absl::StrCat(line, R"(,"text":)", QuoteJson(text), "}");
}

std::atomic<v1::ServerConfig::LogFormat> log_format{v1::ServerConfig::TEXT};

}  // namespace

std::string FormatLogLine(v1::ServerConfig::LogFormat format, absl::Time time, Severity severity,
                          absl::string_view text, const LogSubject& subject) {
  const std::string written = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", time, absl::UTCTimeZone());
  return format == v1::ServerConfig::JSON ? FormatJson(written, severity, text, subject)
                                          : FormatText(written, severity, text, subject);
}

void SetLogFormat(v1::ServerConfig::LogFormat format) { log_format.store(format); }

void Log(Severity severity, absl::string_view text, const LogSubject& subject) {
  const std::string line = absl::StrCat(FormatLogLine(log_format.load(), absl::Now(), severity, text, subject), "\n");
  // One write a line, so that lines of several threads do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void CaptureGrpcLog() {
  gpr_set_log_function(
      [](gpr_log_func_args* args) { Log(SeverityOf(args->severity), absl::StrCat("grpc: ", args->message)); });
}

}  // namespace ampd
