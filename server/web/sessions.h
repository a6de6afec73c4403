// Browsers that have signed in.
#ifndef AMPD_SERVER_WEB_SESSIONS_H_
#define AMPD_SERVER_WEB_SESSIONS_H_

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"

namespace ampd {

// Thread-safe. Held in memory alone: they end with the daemon. A session stands for a token's secret, which is asked
// about anew at each call, so that it is good for nothing once the token does not hold.
class Sessions {
 public:
  // Since its last use.
  static constexpr absl::Duration kLifetime = absl::Hours(12);
  // At a time, in all and of one token; the one that was not used for the longest time makes room.
  static constexpr size_t kMax = 1024;
  static constexpr size_t kMaxOfToken = 16;

  // `clock` outlives the sessions.
  explicit Sessions(const Clock* clock) : clock_(clock) {}

  // The value of its cookie: 256 random bits in hexadecimal.
  std::string Open(const std::string& secret, const std::string& token_id);
  // The secret; nullopt for a session that is unknown or over. A use.
  std::optional<std::string> Find(absl::string_view cookie);
  void Close(absl::string_view cookie);

 private:
  struct Session {
    std::string secret;
    std::string token_id;
    absl::Duration used;
  };

  void DropOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the token, or of all where it is empty, while they are `max` or more.
  void MakeRoom(const std::string& token_id, size_t max) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  Mutex mutex_;
  // By SHA-256 of the cookie, so that looking one up tells nothing of others by the time it takes.
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_SESSIONS_H_
