#include "server/web/sessions.h"

#include "server/jobs/credentials.h"

namespace ampd {

void Sessions::DropOld() {
  const absl::Duration now = clock_->Monotonic();
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    it = now - it->second.used > kLifetime ? sessions_.erase(it) : std::next(it);
  }
}

void Sessions::MakeRoom(const std::string& token_id, size_t max) {
  size_t count = 0;
  auto oldest = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (!token_id.empty() && it->second.token_id != token_id) continue;
    ++count;
    if (oldest == sessions_.end() || it->second.used < oldest->second.used) oldest = it;
  }
  if (count >= max) sessions_.erase(oldest);
}

std::string Sessions::Open(const std::string& secret, const std::string& token_id) {
  std::string cookie = NewCredential();
  const MutexLock lock(&mutex_);
  DropOld();
  MakeRoom(token_id, kMaxOfToken);
  MakeRoom("", kMax);
  sessions_[Sha256(cookie)] = {secret, token_id, clock_->Monotonic()};
  return cookie;
}

std::optional<std::string> Sessions::Find(absl::string_view cookie) {
  const MutexLock lock(&mutex_);
  DropOld();
  const auto found = sessions_.find(Sha256(cookie));
  if (found == sessions_.end()) return std::nullopt;
  found->second.used = clock_->Monotonic();
  return found->second.secret;
}

void Sessions::Close(absl::string_view cookie) {
  const MutexLock lock(&mutex_);
  sessions_.erase(Sha256(cookie));
}

}  // namespace ampd
