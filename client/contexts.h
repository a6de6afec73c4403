// Contexts: servers by name, each with who one is there, in a file of the user's.
#ifndef AMPD_CLIENT_CONTEXTS_H_
#define AMPD_CLIENT_CONTEXTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/config.pb.h"

namespace ampd::client {

// $AMPCTL_CONFIG; else ampctl/config.yaml in $XDG_CONFIG_HOME, else in ~/.config. Empty where there is none of them.
std::string ContextsPath();

// The file at `path`, with absolute paths; empty where there is none. INVALID_ARGUMENT, with line and field, for one
// that cannot be understood, and for one with a token in it that others may read.
absl::StatusOr<ClientConfig> ReadContexts(const std::string& path);

// All of it or nothing, for its owner alone. Folders are made. FAILED_PRECONDITION, with the path, where it cannot be.
absl::Status WriteContexts(const std::string& path, const ClientConfig& config);

// NOT_FOUND, with the one that may be meant.
absl::StatusOr<ClientContext> FindContext(const ClientConfig& config, const std::string& name);

// INVALID_ARGUMENT for what cannot name a context.
absl::Status CheckContextName(const std::string& name);

// What may be shown: tokens are "REDACTED".
ClientContext WithoutSecrets(ClientContext context);
ClientConfig WithoutSecrets(ClientConfig config);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CONTEXTS_H_
