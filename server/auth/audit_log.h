// Who changed what, and who tried to: a file of JSON objects, one a line and a call.
#ifndef AMPD_SERVER_AUTH_AUDIT_LOG_H_
#define AMPD_SERVER_AUTH_AUDIT_LOG_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/auth/caller.h"
#include "server/files/unique_fd.h"

namespace ampd {

// No secret and nothing of the call's body but a name.
struct AuditRecord {
  // When the call was answered, or else ended.
  absl::Time time;
  // Without role where nobody could be made out.
  Caller caller;
  // As gRPC writes it: "ipv4:127.0.0.1:1234".
  std::string peer;
  // "CancelJob".
  std::string method;
  // What was changed, as the client named it; at most the first 200 bytes are written, and nothing of a secret. Empty:
  // nothing.
  std::string resource;
  // The id of what came of it. Empty: nothing.
  std::string made;
  // "OK", "NOT_FOUND", ...
  std::string code;
  // The line is forced to disk before Write returns: for what few may do, seldom.
  bool durable = false;
  // It was refused before anybody looked at what was to change, whatever `code` says.
  bool changed_nothing = false;
};

// {"time":"2026-01-31T12:00:00.123Z","user":...,"token":...,"role":...,"peer":...,"method":...,"resource":...,"made":...,"code":...};
// what is empty is left out. Without the line's end.
std::string FormatAuditLine(const AuditRecord& record);

// {"time":...,"peer":...,"code":"UNAUTHENTICATED","left_out":1234}: calls of nobody that have no lines of their own,
// since the last such line. `peer` without its port; empty: several. Without the line's end.
std::string FormatLeftOutLine(absl::Time time, absl::string_view peer, int64_t calls);

// {"time":...,"user":"ann","left_out":1234}: likewise calls of a user that were refused; empty: of several.
std::string FormatRefusedLine(absl::Time time, absl::string_view user, int64_t calls);

// Thread safe. A line is one write. Those that are `durable` are forced to disk, and with them all before; a power cut
// may cost the last of the others. What is left of a line stays on a line of its own.
//
// Who could not be made out cannot push others' lines out: such calls get at most 10 lines a second and address, and a
// quarter of a file's bytes, and never begin a new file. The others are counted, and a line tells how many, at most
// once a minute. Likewise a user who is no administrator with calls that are refused: they get 10 lines a second and
// user, of a file's bytes a sixteenth a user and a quarter all users. What may have changed something has its line.
class AuditLog {
 public:
  struct Options {
    // Made with mode 0600 when missing.
    std::string path;
    // At which PATH becomes PATH.1, that PATH.2 and so on, bytes, >= 1.
    int64_t max_bytes = int64_t{64} << 20;
    // Files that stay beside PATH, >= 1.
    int keep = 4;
    // Forces a file to disk: 0, or -1 and errno. By default fdatasync.
    std::function<int(int fd)> sync;
    // Told, in words, when lines begin to be lost, are written again, or may not be on disk. May be empty; must not
    // block.
    std::function<void(const std::string&)> log;
  };

  // The file system's error, with the path.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(Options options);

  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const AuditRecord& record);

 private:
  // Of one address or user.
  struct Second {
    absl::Time begin;
    int lines = 0;
  };
  using Seconds = std::map<std::string, Second>;
  // Calls of nobody without lines.
  struct LeftOut {
    int64_t calls = 0;
    std::string address;
    bool several = false;
  };

  explicit AuditLog(Options options) : options_(std::move(options)) {}

  // Appends it, and puts what is to be told of that into `news`. False: it could not be written.
  bool Put(absl::string_view line, std::string* news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Likewise a call's, which is counted where it is lost.
  void PutCall(absl::string_view line, bool durable, std::string* news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a call of nobody gets its line of `bytes`; else it is counted.
  bool TakeStranger(const AuditRecord& record, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Likewise a user's that was refused.
  bool TakeRefused(const AuditRecord& record, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool TakeLine(const std::string& name, absl::Time now, Seconds* seconds);
  // What a line that tells of what was left out may take.
  int64_t TellBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellLeftOut(absl::Time now, std::string* news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All of it, or nothing where the file can be cut.
  absl::Status Append(absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Sync() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whoever moves the file away gets a new one.
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsStillThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  UniqueFd file_ ABSL_GUARDED_BY(mutex_);
  dev_t device_ ABSL_GUARDED_BY(mutex_) = 0;
  ino_t inode_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Not behind a part of a line, which a full disk or a power cut left.
  bool begins_line_ ABSL_GUARDED_BY(mutex_) = true;
  // The file's name is on disk, too.
  bool name_synced_ ABSL_GUARDED_BY(mutex_) = false;
  // As was told.
  bool cannot_sync_ ABSL_GUARDED_BY(mutex_) = false;
  // Of lines of nobody, in this file; as far as this process knows.
  int64_t strangers_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Seconds seconds_ ABSL_GUARDED_BY(mutex_);
  LeftOut left_out_ ABSL_GUARDED_BY(mutex_);
  // By user, likewise of calls that were refused; those without lines.
  Seconds refused_seconds_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> refused_bytes_ ABSL_GUARDED_BY(mutex_);
  int64_t all_refused_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> refused_left_out_ ABSL_GUARDED_BY(mutex_);
  absl::Time told_left_out_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Since lines began to be lost.
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_AUDIT_LOG_H_
