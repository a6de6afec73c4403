#include "server/auth/audit_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/text.h"
#include "server/auth/peer.h"
#include "server/files/files.h"

namespace ampd {
namespace {

constexpr size_t kMaxResourceBytes = 200;
// Of an address that nobody was made out at, and of a user's calls that were refused.
constexpr int kLinesPerSecond = 10;
// Addresses, and users; the others share one entry.
constexpr size_t kMaxNames = 1000;
constexpr absl::Duration kTellLeftOutEvery = absl::Minutes(1);
constexpr int64_t kLeftOutLineBytes = 256;
constexpr char kSecretPrefix[] = "ampd_";
// Shorter ones are names.
constexpr size_t kMinSecretDigits = 8;

void AddField(absl::string_view name, absl::string_view value, std::string* line) {
  if (!value.empty()) absl::StrAppend(line, ",\"", name, "\":", QuoteJson(value));
}

// Secrets are pasted where names belong. What may be one, or a part of one, is cut.
std::string WithoutSecrets(absl::string_view text) {
  std::string safe;
  for (size_t at; (at = text.find(kSecretPrefix)) != absl::string_view::npos;) {
    const size_t digits = at + sizeof(kSecretPrefix) - 1;
    size_t end = digits;
    while (end < text.size() && absl::ascii_isxdigit(text[end])) ++end;
    absl::StrAppend(&safe, text.substr(0, digits),
                    end - digits < kMinSecretDigits ? text.substr(digits, end - digits) : "...");
    text.remove_prefix(end);
  }
  return absl::StrCat(safe, text);
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string BeginLine(absl::Time time) {
  return absl::StrCat(R"({"time":")", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", time, absl::UTCTimeZone()), "\"");
}

// Whether the call changed nothing for certain. An administrator's never counts as one.
bool IsRefused(const AuditRecord& record) {
  if (record.code == "OK" || !record.made.empty() || record.caller.role == v1::ADMIN) return false;
  // Files before the one that was refused stay.
  if (absl::EndsWith(record.method, "UploadDataset")) return false;
  if (record.changed_nothing || record.caller.role == v1::VIEWER) return true;
  // With other codes it may have ended behind the change.
  constexpr absl::string_view kCodes[] = {"INVALID_ARGUMENT",  "NOT_FOUND",          "ALREADY_EXISTS",
                                          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
                                          "ABORTED",           "OUT_OF_RANGE",       "UNIMPLEMENTED"};
  return std::find(std::begin(kCodes), std::end(kCodes), record.code) != std::end(kCodes);
}

// The entry of `name`, or where there are too many that of all others.
template <typename Value>
std::string EntryOf(const std::string& name, const std::map<std::string, Value>& entries) {
  return entries.size() >= kMaxNames && !entries.contains(name) ? "" : name;
}

}  // namespace

std::string FormatLeftOutLine(absl::Time time, absl::string_view peer, int64_t calls) {
  std::string line = BeginLine(time);
  AddField("peer", peer, &line);
  AddField("code", "UNAUTHENTICATED", &line);
  return absl::StrCat(line, ",\"left_out\":", calls, "}");
}

std::string FormatRefusedLine(absl::Time time, absl::string_view user, int64_t calls) {
  std::string line = BeginLine(time);
  AddField("user", user, &line);
  return absl::StrCat(line, ",\"left_out\":", calls, "}");
}

std::string FormatAuditLine(const AuditRecord& record) {
  std::string line = BeginLine(record.time);
  AddField("user", record.caller.user, &line);
  AddField("token", record.caller.token_id, &line);
  if (record.caller.role != v1::ROLE_UNSPECIFIED) AddField("role", v1::Role_Name(record.caller.role), &line);
  AddField("peer", record.peer, &line);
  AddField("method", record.method, &line);
  AddField("resource", WithoutSecrets(record.resource).substr(0, kMaxResourceBytes), &line);
  AddField("made", record.made, &line);
  AddField("code", record.code, &line);
  return absl::StrCat(line, "}");
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(Options options) {
  if (!options.sync) options.sync = fdatasync;
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(options)));
  const MutexLock lock(&log->mutex_);
  AMPD_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

absl::Status AuditLog::OpenFile() {
  file_.Reset(open(options_.path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat info {};
  if (!file_.valid() || fstat(file_.get(), &info) != 0) {
    return FileError(absl::StrCat("open the audit log ", options_.path), errno);
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  bytes_ = info.st_size;
  char last = '\n';
  begins_line_ = bytes_ == 0 || (pread(file_.get(), &last, 1, bytes_ - 1) == 1 && last == '\n');
  strangers_bytes_ = 0;
  refused_bytes_.clear();
  all_refused_bytes_ = 0;
  name_synced_ = false;
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

absl::Status AuditLog::Sync() {
  if (options_.sync(file_.get()) != 0) return FileError(absl::StrCat("sync the audit log ", options_.path), errno);
  if (!name_synced_) AMPD_RETURN_IF_ERROR(SyncFolder(FolderOf(options_.path)));
  name_synced_ = true;
  return absl::OkStatus();
}

absl::Status AuditLog::Append(absl::string_view line) {
  if (bytes_ + static_cast<int64_t>(line.size()) > options_.max_bytes && bytes_ > 0) {
    // What is behind a line that is on disk must not be lost.
    if (file_.valid()) (void)options_.sync(file_.get());
    Rotate();
  }
  if (!IsStillThere()) AMPD_RETURN_IF_ERROR(OpenFile());
  const off_t before = lseek(file_.get(), 0, SEEK_END);
  const std::string text = absl::StrCat(begins_line_ ? "" : "\n", line);
  const absl::Status written = WriteAll(file_.get(), text, options_.path);
  // A part of a line would spoil the next.
  if (!written.ok()) begins_line_ = before >= 0 && ftruncate(file_.get(), before) == 0 && begins_line_;
  AMPD_RETURN_IF_ERROR(written);
  begins_line_ = true;
  bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

bool AuditLog::Put(absl::string_view line, std::string* news) {
  const absl::Status status = Append(absl::StrCat(line, "\n"));
  if (!status.ok() && lost_ == 0) {
    *news = absl::StrCat("calls are missing in the audit log from now on: ", status.message());
  } else if (status.ok() && lost_ > 0) {
    *news = absl::StrCat("the audit log is written again; it misses ", std::exchange(lost_, 0), " calls");
  }
  return status.ok();
}

void AuditLog::PutCall(absl::string_view line, bool durable, std::string* news) {
  const bool written = Put(line, news);
  if (!written) ++lost_;
  if (!written || !durable) return;
  const absl::Status synced = Sync();
  if (!synced.ok() && !std::exchange(cannot_sync_, true)) {
    *news = absl::StrCat("a power cut may cost lines of the audit log: ", synced.message());
  }
  cannot_sync_ = !synced.ok();
}

bool AuditLog::TakeLine(const std::string& name, absl::Time now, Seconds* seconds) {
  const auto over = [now](const Second& second) {
    return now < second.begin || now - second.begin >= absl::Seconds(1);
  };
  if (seconds->size() >= kMaxNames && !seconds->contains(name)) {
    std::erase_if(*seconds, [&](const auto& entry) { return over(entry.second); });
  }
  Second& second = (*seconds)[EntryOf(name, *seconds)];
  if (over(second)) second = {now, 0};
  return ++second.lines <= kLinesPerSecond;
}

bool AuditLog::TakeStranger(const AuditRecord& record, int64_t bytes) {
  const std::string address = PeerAddress(record.peer);
  const bool room = strangers_bytes_ + bytes <= options_.max_bytes / 4 && bytes_ + bytes <= options_.max_bytes;
  if (TakeLine(address, record.time, &seconds_) && room) {
    strangers_bytes_ += bytes;
    return true;
  }
  if (left_out_.calls++ == 0) left_out_.address = address;
  left_out_.several = left_out_.several || left_out_.address != address;
  return false;
}

bool AuditLog::TakeRefused(const AuditRecord& record, int64_t bytes) {
  const std::string& user = record.caller.user;
  int64_t& users_bytes = refused_bytes_[EntryOf(user, refused_bytes_)];
  const bool room = users_bytes + bytes <= options_.max_bytes / 16 &&
                    all_refused_bytes_ + bytes <= options_.max_bytes / 4 && bytes_ + bytes <= options_.max_bytes;
  if (TakeLine(user, record.time, &refused_seconds_) && room) {
    users_bytes += bytes;
    all_refused_bytes_ += bytes;
    return true;
  }
  ++refused_left_out_[EntryOf(user, refused_left_out_)];
  return false;
}

int64_t AuditLog::TellBytes() const {
  return kLeftOutLineBytes * static_cast<int64_t>((left_out_.calls > 0 ? 1 : 0) + refused_left_out_.size());
}

void AuditLog::TellLeftOut(absl::Time now, std::string* news) {
  // Where that fails they stay counted, for a later line.
  if (left_out_.calls > 0) {
    if (!Put(FormatLeftOutLine(now, left_out_.several ? "" : left_out_.address, left_out_.calls), news)) return;
    told_left_out_ = now;
    left_out_ = {};
  }
  while (!refused_left_out_.empty()) {
    const auto [user, calls] = *refused_left_out_.begin();
    if (!Put(FormatRefusedLine(now, user, calls), news)) return;
    told_left_out_ = now;
    refused_left_out_.erase(user);
  }
}

void AuditLog::Write(const AuditRecord& record) {
  const std::string line = FormatAuditLine(record);
  const bool is_stranger = record.caller.role == v1::ROLE_UNSPECIFIED;
  std::string news;
  {
    const MutexLock lock(&mutex_);
    const bool tell = TellBytes() > 0 && record.time - told_left_out_ >= kTellLeftOutEvery;
    const int64_t bytes = static_cast<int64_t>(line.size()) + 1 + (tell ? TellBytes() : 0);
    const bool taken = is_stranger ? TakeStranger(record, bytes) : !IsRefused(record) || TakeRefused(record, bytes);
    if (taken) {
      if (tell) TellLeftOut(record.time, &news);
      PutCall(line, record.durable, &news);
    }
  }
  if (!news.empty() && options_.log) options_.log(news);
}

// How many there were since the last line is not to be lost.
AuditLog::~AuditLog() {
  const MutexLock lock(&mutex_);
  std::string news;
  TellLeftOut(absl::Now(), &news);
}

}  // namespace ampd
