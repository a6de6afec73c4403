// Who makes a call.
#ifndef AMPD_SERVER_AUTH_CALLER_H_
#define AMPD_SERVER_AUTH_CALLER_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "ampd/v1/auth.pb.h"

namespace ampd {

struct Caller {
  // Empty where callers are not told apart.
  std::string user;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  // Empty where there was no token.
  std::string token_id;
  // When what they showed, a token or a certificate, stops to be good.
  absl::Time expires = absl::InfiniteFuture();

  // Whose jobs, and what belongs to them, the caller may see and change; nullopt: everybody's.
  std::optional<std::string> Scope() const {
    return role == v1::ADMIN ? std::nullopt : std::optional<std::string>(user);
  }
};

// Of a server that asks for no tokens.
inline Caller Anybody() { return {"", v1::ADMIN, "", absl::InfiniteFuture()}; }

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_CALLER_H_
