// Which role each call needs: one table, in which every method that the server has must stand.
#ifndef AMPD_SERVER_AUTH_PERMISSIONS_H_
#define AMPD_SERVER_AUTH_PERMISSIONS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/auth.pb.h"
#include "server/auth/caller.h"

namespace ampd {

struct MethodRule {
  // "/ampd.v1.TrainingService/GetJob".
  const char* path;
  // The least role; ROLE_UNSPECIFIED: open to everybody, with or without a token.
  v1::Role role;
  // Such calls go into the audit log.
  bool changes = false;
  // The request's field that names what is changed; null: none.
  const char* resource = nullptr;
  // Likewise the answer's, where it is not known before.
  const char* made = nullptr;
};

const std::vector<MethodRule>& MethodRules();

// Null for a method that is in no rule: nobody may call it.
const MethodRule* FindMethodRule(absl::string_view path);

// PERMISSION_DENIED, naming both roles, unless `caller` may make calls of `path`.
absl::Status CheckRole(const Caller& caller, absl::string_view path);

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_PERMISSIONS_H_
