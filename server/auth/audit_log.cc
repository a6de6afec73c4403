#include "server/auth/audit_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/text.h"
#include "server/files/files.h"

namespace ampd {
namespace {

constexpr size_t kMaxResourceBytes = 200;

void AddField(absl::string_view name, absl::string_view value, std::string* line) {
  if (!value.empty()) absl::StrAppend(line, ",\"", name, "\":", QuoteJson(value));
}

}  // namespace

std::string FormatAuditLine(const AuditRecord& record) {
  std::string line =
      absl::StrCat(R"({"time":")", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", record.time, absl::UTCTimeZone()), "\"");
  AddField("user", record.caller.user, &line);
  AddField("token", record.caller.token_id, &line);
  if (record.caller.role != v1::ROLE_UNSPECIFIED) AddField("role", v1::Role_Name(record.caller.role), &line);
  AddField("peer", record.peer, &line);
  AddField("method", record.method, &line);
  AddField("resource", record.resource.substr(0, kMaxResourceBytes), &line);
  AddField("made", record.made, &line);
  AddField("code", record.code, &line);
  return absl::StrCat(line, "}");
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(Options options) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(options)));
  const MutexLock lock(&log->mutex_);
  AMPD_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

absl::Status AuditLog::OpenFile() {
  file_.Reset(open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat info {};
  if (!file_.valid() || fstat(file_.get(), &info) != 0) {
    return FileError(absl::StrCat("open the audit log ", options_.path), errno);
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  bytes_ = info.st_size;
  return absl::OkStatus();
}

bool AuditLog::IsStillThere() const {
  struct stat info {};
  return file_.valid() && stat(options_.path.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

void AuditLog::Rotate() {
  for (int i = options_.keep; i > 0; --i) {
    const std::string from = i == 1 ? options_.path : absl::StrCat(options_.path, ".", i - 1);
    // What is not there cannot be renamed; where the log itself cannot, it grows on.
    rename(from.c_str(), absl::StrCat(options_.path, ".", i).c_str());
  }
}

absl::Status AuditLog::Append(absl::string_view line) {
  if (bytes_ + static_cast<int64_t>(line.size()) > options_.max_bytes && bytes_ > 0) Rotate();
  if (!IsStillThere()) AMPD_RETURN_IF_ERROR(OpenFile());
  AMPD_RETURN_IF_ERROR(WriteAll(file_.get(), line, options_.path));
  bytes_ += static_cast<int64_t>(line.size());
  return absl::OkStatus();
}

void AuditLog::Write(const AuditRecord& record) {
  const std::string line = absl::StrCat(FormatAuditLine(record), "\n");
  std::string news;
  {
    const MutexLock lock(&mutex_);
    const absl::Status status = Append(line);
    if (!status.ok() && lost_++ == 0) {
      news = absl::StrCat("calls are missing in the audit log from now on: ", status.message());
    } else if (status.ok() && lost_ > 0) {
      news = absl::StrCat("the audit log is written again; it misses ", std::exchange(lost_, 0), " calls");
    }
  }
  if (!news.empty() && options_.log) options_.log(news);
}

}  // namespace ampd
