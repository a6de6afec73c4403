#include "server/auth/tokens.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "google/protobuf/util/time_util.h"
#include "proto/spec/resolve.h"
#include "server/files/files.h"
#include "server/files/unique_fd.h"
#include "server/jobs/credentials.h"

namespace ampd {
namespace {

using google::protobuf::util::TimeUtil;

constexpr char kSecretPrefix[] = "ampd_";
constexpr size_t kSecretBytes = sizeof(kSecretPrefix) - 1 + 64;
constexpr size_t kIdBytes = 26;
constexpr size_t kMinIdPrefix = 4;
constexpr int64_t kMaxLifetimeSeconds = int64_t{100} * 366 * 24 * 3600;
constexpr char kFirstAdmin[] = "admin";

std::string NewSecret() { return absl::StrCat(kSecretPrefix, NewCredential()); }

bool IsSecret(absl::string_view text) {
  if (text.size() != kSecretBytes || !absl::ConsumePrefix(&text, kSecretPrefix)) return false;
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  return TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

absl::Time FromTimestamp(const google::protobuf::Timestamp& time) {
  return absl::FromUnixNanos(TimeUtil::TimestampToNanoseconds(time));
}

absl::Status CheckRequest(const v1::CreateTokenRequest& request) {
  std::vector<FieldViolation> wrong;
  if (!IsUserName(request.user())) {
    wrong.push_back({"user", "must be letters, digits, '_', '-', '.' and '@', 1 to 100"});
  }
  if (request.role() != v1::VIEWER && request.role() != v1::SUBMITTER && request.role() != v1::ADMIN) {
    wrong.push_back({"role", "must be VIEWER, SUBMITTER or ADMIN"});
  }
  if (request.has_lifetime_seconds() &&
      (request.lifetime_seconds() < 1 || request.lifetime_seconds() > kMaxLifetimeSeconds)) {
    wrong.push_back({"lifetime_seconds",
                     absl::StrCat("must be from 1 to ", kMaxLifetimeSeconds, ", is ", request.lifetime_seconds())});
  }
  return wrong.empty() ? absl::OkStatus() : InvalidFields(wrong);
}

// Who else may read it has the secret too, who may write it can choose it.
absl::Status CheckIsPrivate(int fd, const std::string& file) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return FileError(absl::StrCat("look at ", file), errno);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " belongs to user ", info.st_uid, ", not to ", geteuid(), ", as which this server runs"));
  }
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      file, " is open to others (mode ", absl::StrFormat("%04o", info.st_mode & 07777), "): chmod 600 ", file));
}

// NOT_FOUND where there is no file.
absl::StatusOr<std::string> ReadSecret(const std::string& file) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return FileError(absl::StrCat("open ", file), errno);
  AMPD_RETURN_IF_ERROR(CheckIsPrivate(fd.get(), file));
  std::string text(kSecretBytes + 16, '\0');
  const ssize_t got = read(fd.get(), text.data(), text.size());
  if (got < 0) return FileError(absl::StrCat("read ", file), errno);
  text.resize(static_cast<size_t>(got));
  std::string secret(absl::StripAsciiWhitespace(text));
  if (IsSecret(secret)) return secret;
  return absl::FailedPreconditionError(
      absl::StrCat(file, " holds no token: \"", kSecretPrefix, "\" and 64 hex digits; nothing there is overwritten"));
}

absl::Status WriteNewFile(const std::string& file, const std::string& text) {
  const UniqueFd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) return FileError(absl::StrCat("create ", file), errno);
  AMPD_RETURN_IF_ERROR(WriteAll(fd.get(), text, file));
  return fsync(fd.get()) == 0 ? absl::OkStatus() : FileError(absl::StrCat("sync ", file), errno);
}

// All of it, on disk, under its name, or nothing; nothing there is replaced.
absl::Status WriteSecret(const std::string& file, const std::string& secret) {
  const std::string unfinished = absl::StrCat(file, ".new");
  // What a start that was cut short left.
  unlink(unfinished.c_str());
  absl::Status written = WriteNewFile(unfinished, absl::StrCat(secret, "\n"));
  if (written.ok() && renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, file.c_str(), RENAME_NOREPLACE) != 0) {
    written = FileError(absl::StrCat("create ", file), errno);
  }
  if (!written.ok()) {
    unlink(unfinished.c_str());
    return written;
  }
  const std::string folder = std::filesystem::path(file).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace

bool IsUserName(absl::string_view name) {
  if (name.empty() || name.size() > 100) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("_-.@", c); });
}

absl::StatusOr<std::unique_ptr<TokenBook>> TokenBook::Open(Store* store, const Clock* clock) {
  std::unique_ptr<TokenBook> book(new TokenBook(store, clock));
  AMPD_ASSIGN_OR_RETURN(const std::vector<TokenRecord> records,
                        store->Await([](const Database& database) { return database.Tokens(); }));
  for (const TokenRecord& record : records) book->Remember(record);
  const MutexLock lock(&book->mutex_);
  if (!records.empty()) book->ids_.StartAfter(records.back().token.id());
  return book;
}

// What the store still does for this object ends with that.
TokenBook::~TokenBook() { store_->Flush(); }

void TokenBook::Remember(const TokenRecord& record) {
  const MutexLock lock(&mutex_);
  tokens_[record.hash] = record.token;
  hashes_[record.token.id()] = record.hash;
}

absl::Status TokenBook::CheckHolds(const v1::Token& token) const {
  if (token.has_revoke_time()) return absl::UnauthenticatedError(absl::StrCat("token ", token.id(), " was revoked"));
  if (!token.has_expire_time() || clock_->Now() < FromTimestamp(token.expire_time())) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("token ", token.id(), " expired at ", TimeUtil::ToString(token.expire_time())));
}

absl::StatusOr<Caller> TokenBook::Authenticate(absl::string_view secret) const {
  const std::string hash = Sha256(secret);
  const MutexLock lock(&mutex_);
  const auto found = tokens_.find(hash);
  if (found == tokens_.end()) return absl::UnauthenticatedError("the token is not known here");
  const v1::Token& token = found->second;
  AMPD_RETURN_IF_ERROR(CheckHolds(token));
  return Caller{token.user(), token.role(), token.id(),
                token.has_expire_time() ? FromTimestamp(token.expire_time()) : absl::InfiniteFuture()};
}

v1::Token TokenBook::NewToken(const std::string& user, v1::Role role) {
  const absl::Time now = clock_->Now();
  v1::Token token;
  {
    const MutexLock lock(&mutex_);
    token.set_id(ids_.Next(now));
  }
  token.set_user(user);
  token.set_role(role);
  *token.mutable_create_time() = ToTimestamp(now);
  return token;
}

void TokenBook::Put(TokenRecord record, std::function<void(absl::Status)> done) {
  store_->Change([record](Database& database) { return database.PutToken(record); },
                 [this, record, done = std::move(done)](const absl::Status& status) {
                   if (status.ok()) Remember(record);
                   done(status);
                 });
}

void TokenBook::Create(const v1::CreateTokenRequest& request, Done<v1::CreateTokenResponse> done) {
  if (const absl::Status status = CheckRequest(request); !status.ok()) return done(status);
  v1::CreateTokenResponse response;
  v1::Token& token = *response.mutable_token();
  token = NewToken(request.user(), request.role());
  if (request.has_lifetime_seconds()) {
    *token.mutable_expire_time() =
        ToTimestamp(FromTimestamp(token.create_time()) + absl::Seconds(request.lifetime_seconds()));
  }
  response.set_secret(NewSecret());
  TokenRecord record{token, Sha256(response.secret())};
  Put(std::move(record), [done = std::move(done), response = std::move(response)](absl::Status status) mutable {
    if (!status.ok()) return done(status);
    done(std::move(response));
  });
}

absl::StatusOr<TokenRecord> TokenBook::FindBySecret(absl::string_view secret) const {
  const std::string hash = Sha256(secret);
  const MutexLock lock(&mutex_);
  const auto found = tokens_.find(hash);
  // Nothing of it: an error is shown and written down in more places than a secret should be.
  if (found == tokens_.end()) return absl::NotFoundError("no token has this secret");
  return TokenRecord{found->second, found->first};
}

absl::StatusOr<TokenRecord> TokenBook::Find(const std::string& id) const {
  if (absl::StrContains(id, kSecretPrefix)) return FindBySecret(absl::StripAsciiWhitespace(id));
  if (id.size() > kIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("not a token's id: ", id.size(), " characters"));
  }
  if (id.size() < kMinIdPrefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", id, "\" is no token id: it, or at least its first ", kMinIdPrefix, " characters"));
  }
  const MutexLock lock(&mutex_);
  const auto found = hashes_.lower_bound(id);
  if (found == hashes_.end() || !absl::StartsWith(found->first, id)) {
    return absl::NotFoundError(absl::StrCat("no token ", id));
  }
  const auto next = std::next(found);
  if (next != hashes_.end() && absl::StartsWith(next->first, id)) {
    return absl::InvalidArgumentError(absl::StrCat("several tokens begin with ", id));
  }
  return TokenRecord{tokens_.at(found->second), found->second};
}

void TokenBook::Revoke(const std::string& id, Done<v1::Token> done) {
  absl::StatusOr<TokenRecord> record = Find(id);
  if (!record.ok()) return done(record.status());
  if (record->token.has_revoke_time()) return done(record->token);
  *record->token.mutable_revoke_time() = ToTimestamp(clock_->Now());
  Put(*record, [this, token = record->token, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    std::function<void(const std::string&)> listener;
    {
      const MutexLock lock(&mutex_);
      listener = revoked_;
    }
    if (listener) listener(token.id());
    done(token);
  });
}

std::vector<v1::Token> TokenBook::List() const {
  const MutexLock lock(&mutex_);
  std::vector<v1::Token> tokens;
  for (const auto& [id, hash] : hashes_) tokens.push_back(tokens_.at(hash));
  return tokens;
}

bool TokenBook::HasAdmin() const {
  const MutexLock lock(&mutex_);
  return std::any_of(tokens_.begin(), tokens_.end(), [this](const auto& entry) {
    return entry.second.role() == v1::ADMIN && CheckHolds(entry.second).ok();
  });
}

absl::StatusOr<bool> TokenBook::InitAdmin(const std::string& file) {
  if (HasAdmin()) return false;
  absl::StatusOr<std::string> secret = ReadSecret(file);
  if (absl::IsNotFound(secret.status())) {
    secret = NewSecret();
    // First: a secret that is written but not known yet is taken from the file at the next start.
    AMPD_RETURN_IF_ERROR(WriteSecret(file, *secret));
  }
  AMPD_RETURN_IF_ERROR(secret.status());
  const absl::StatusOr<Caller> known = Authenticate(*secret);
  const std::string hash = Sha256(*secret);
  {
    const MutexLock lock(&mutex_);
    if (tokens_.contains(hash)) {
      return absl::FailedPreconditionError(
          absl::StrCat("no ADMIN token holds, and that in ", file, " cannot become one: ",
                       known.ok() ? absl::StrCat("it is ", known->user, "'s, ", v1::Role_Name(known->role))
                                  : std::string(known.status().message()),
                       "; remove the file for a new one"));
    }
  }
  std::promise<absl::Status> written;
  Put({NewToken(kFirstAdmin, v1::ADMIN), hash}, [&written](absl::Status status) { written.set_value(status); });
  AMPD_RETURN_IF_ERROR(written.get_future().get());
  return true;
}

void TokenBook::SetRevokeListener(std::function<void(const std::string& token_id)> listener) {
  const MutexLock lock(&mutex_);
  revoked_ = std::move(listener);
}

}  // namespace ampd
