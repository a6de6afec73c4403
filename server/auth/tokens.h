// The tokens by which clients show who they are.
#ifndef AMPD_SERVER_AUTH_TOKENS_H_
#define AMPD_SERVER_AUTH_TOKENS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/auth.pb.h"
#include "engine/core/mutex.h"
#include "server/auth/caller.h"
#include "server/events/clock.h"
#include "server/jobs/job_id.h"
#include "server/store/store.h"

namespace ampd {

// Letters, digits, '_', '-', '.' and '@', 1 to 100.
bool IsUserName(absl::string_view name);

// Thread safe. A secret is "ampd_" and 64 hex digits, 256 random bits; what is kept of it is its SHA-256, which needs
// no salt and no stretching, since such a secret cannot be guessed.
class TokenBook {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // Reads what is in `store`, which outlives this, as `clock` does. Errors as Database::Tokens.
  static absl::StatusOr<std::unique_ptr<TokenBook>> Open(Store* store, const Clock* clock);
  ~TokenBook();
  TokenBook(const TokenBook&) = delete;
  TokenBook& operator=(const TokenBook&) = delete;

  // Whose secret it is. UNAUTHENTICATED, saying which, for one that is unknown, has expired or was revoked.
  absl::StatusOr<Caller> Authenticate(absl::string_view secret) const;

  // `done` is called once, on any thread, when the token is durable; it holds from then on. INVALID_ARGUMENT with the
  // fields for a request that is not what its message says.
  void Create(const v1::CreateTokenRequest& request, Done<v1::CreateTokenResponse> done);
  // Likewise; from `done` on nobody gets in by it. `id`: whole, or a unique prefix of at least 4 characters; or the
  // secret, of which nothing is in an error. NOT_FOUND where there is none; one that was revoked before is answered as
  // it is.
  void Revoke(const std::string& id, Done<v1::Token> done);
  // Oldest first.
  std::vector<v1::Token> List() const;
  // Whether there is a token of role ADMIN by which somebody could get in now.
  bool HasAdmin() const;

  // Where there is no such token makes one, of user "admin": with the secret in `file`, or with a new one, which is
  // written there, mode 0600; the file has all of it or is not there, and is on disk before the token is. Waits for the
  // disk. True when it made one. FAILED_PRECONDITION when the file is open to others than its owner, who is this
  // process's user or root, when it holds something else, or a secret that expired or was revoked; the file system's
  // errors.
  absl::StatusOr<bool> InitAdmin(const std::string& file);

  // Told the id of each token that was revoked, on the store's thread; must not block.
  void SetRevokeListener(std::function<void(const std::string& token_id)> listener);

 private:
  TokenBook(Store* store, const Clock* clock) : store_(store), clock_(clock) {}

  absl::Status CheckHolds(const v1::Token& token) const;
  v1::Token NewToken(const std::string& user, v1::Role role);
  absl::StatusOr<TokenRecord> Find(const std::string& id) const;
  absl::StatusOr<TokenRecord> FindBySecret(absl::string_view secret) const;
  void Remember(const TokenRecord& record);
  // `done` once it is durable and known.
  void Put(TokenRecord record, std::function<void(absl::Status)> done);

  Store* const store_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  JobIdGenerator ids_ ABSL_GUARDED_BY(mutex_);
  // By hash, and the hashes by id.
  std::map<std::string, v1::Token> tokens_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> hashes_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const std::string&)> revoked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_TOKENS_H_
