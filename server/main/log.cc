#include "server/main/log.h"

#include <grpc/support/log.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

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

}  // namespace

void Log(Severity severity, absl::string_view text) {
  std::string line = absl::StrCat(absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                                  NameOf(severity), " ", text);
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  line += '\n';
  // One write a line, so that lines of several threads do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void CaptureGrpcLog() {
  gpr_set_log_function(
      [](gpr_log_func_args* args) { Log(SeverityOf(args->severity), absl::StrCat("grpc: ", args->message)); });
}

}  // namespace ampd
