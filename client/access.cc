#include "client/access.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/contexts.h"
#include "client/seconds.h"

namespace ampd::client {
namespace {

std::optional<std::string> Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

struct AccessOptions {
  std::string context;
  double timeout_seconds = 0;
  CLI::Option* server;
  CLI::Option* tls;
  CLI::Option* ca;
  CLI::Option* cert;
  CLI::Option* key;
  CLI::Option* insecure;
};

bool IsGiven(const CLI::Option* option) { return option->count() > 0; }

// A certificate of the command line does not go with a key of the context.
void TakeFiles(const ClientContext& context, const AccessOptions& options, Server* server) {
  if (!IsGiven(options.ca)) server->ca = context.ca();
  if (IsGiven(options.cert) || IsGiven(options.key)) return;
  server->certificate = context.cert();
  server->private_key = context.key();
}

void TakeToken(const ClientContext& context, const std::string& name, Server* server) {
  const auto has = [](const std::optional<std::string>& value) { return value && !value->empty(); };
  if (!server->token_file.empty() || has(server->token) || has(server->other_token_file)) return;
  if (!context.token_file().empty()) {
    server->other_token_file = context.token_file();
    server->other_token_file_from = absl::StrCat("token_file of context ", name);
  } else if (!context.token().empty()) {
    server->token = context.token();
    server->token_from = absl::StrCat("token of context ", name);
  }
}

absl::Status TakeContext(const AccessOptions& options, Server* server) {
  const absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return config.status();
  std::string name = options.context;
  if (name.empty()) name = Environment("AMPCTL_CONTEXT").value_or("");
  if (name.empty()) name = config->current_context();
  if (name.empty()) return absl::OkStatus();
  const absl::StatusOr<ClientContext> found = FindContext(*config, name);
  // Who names a server needs no context: that of the token would otherwise go to whoever is there.
  const bool other = IsGiven(options.server) && (!found.ok() || found->server() != server->address);
  if (other && options.context.empty()) return absl::OkStatus();
  if (!found.ok()) return found.status();
  if (!IsGiven(options.server) && !found->server().empty()) server->address = found->server();
  if (!IsGiven(options.tls)) server->tls = found->tls();
  if (!IsGiven(options.insecure)) server->insecure = found->insecure();
  TakeFiles(*found, options, server);
  TakeToken(*found, name, server);
  return absl::OkStatus();
}

}  // namespace

void AddAccessOptions(CLI::App* app, Server* server) {
  const auto options = std::make_shared<AccessOptions>();
  app->add_option("--context", options->context,
                  "Server and credentials by name (ampctl contexts); else AMPCTL_CONTEXT")
      ->type_name("CONTEXT");
  options->server =
      app->add_option("--server", server->address, "Where ampd is; default: the current context's, else 127.0.0.1:7070")
          ->envname("AMPD_SERVER")
          ->type_name("HOST:PORT");
  options->tls = app->add_flag("--tls", server->tls, "TLS, with the system's authorities")->envname("AMPD_TLS");
  options->ca = app->add_option("--ca", server->ca, "TLS, with the authorities of this PEM file")
                    ->envname("AMPD_CA")
                    ->type_name("FILE");
  options->cert = app->add_option("--cert", server->certificate, "PEM file of a certificate to show")
                      ->envname("AMPD_CERT")
                      ->type_name("FILE");
  options->key = app->add_option("--key", server->private_key, "PEM file of its private key")
                     ->envname("AMPD_KEY")
                     ->type_name("FILE");
  app->add_option("--token-file", server->token_file, "File that holds the token; else AMPD_TOKEN, AMPD_TOKEN_FILE")
      ->type_name("FILE");
  server->token = Environment("AMPD_TOKEN");
  server->other_token_file = Environment("AMPD_TOKEN_FILE");
  options->insecure = app->add_flag("--insecure", server->insecure, "Send the token in plain text to another machine")
                          ->envname("AMPD_INSECURE");
  app->add_option_function<double>(
         "--timeout", [server](const double& seconds) { server->timeout = absl::Seconds(seconds); },
         "Seconds that the server may take to answer a call; default: 30, for some calls more")
      ->check(Seconds(0.001, 1e9))
      ->type_name("SECONDS");
  app->parse_complete_callback([options, server] { server->unknown = TakeContext(*options, server); });
}

}  // namespace ampd::client
