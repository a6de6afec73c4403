#include "client/contexts.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/exit_code.h"
#include "client/output/table.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

struct AddOptions {
  std::string name;
  ClientContext context;
  bool token_from_input = false;
  bool replace = false;
  bool use = false;
};

// How one gets in, without what opens.
std::string CredentialsText(const ClientContext& context) {
  std::vector<std::string> kinds;
  if (!context.token_file().empty()) kinds.push_back(context.token_file());
  if (context.token_file().empty() && !context.token().empty()) kinds.push_back("token");
  if (!context.cert().empty()) kinds.push_back("certificate");
  return kinds.empty() ? "-" : absl::StrJoin(kinds, ", ");
}

std::string ServerText(const ClientContext& context) {
  return context.server().empty() ? Server().address : context.server();
}

int RunList(const CommandContext& context) {
  const absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return Fail(context, config.status());
  if (context.format != Format::kTable) {
    PrintMessage(WithoutSecrets(*config), context.format, *context.out);
    return kExitSucceeded;
  }
  constexpr size_t kCredentials = 4;
  Table table({"", "NAME", "SERVER", "TLS", "CREDENTIALS"});
  const std::map<std::string, ClientContext> sorted(config->contexts().begin(), config->contexts().end());
  for (const auto& [name, one] : sorted) {
    const bool tls = one.tls() || !one.ca().empty() || !one.cert().empty();
    table.Add({name == config->current_context() ? "*" : "", name, ServerText(one),
               !one.ca().empty() ? one.ca()
               : tls             ? "yes"
                                 : "no",
               CredentialsText(one)});
  }
  *context.out << FittedText(table, kCredentials, context) << std::flush;
  return kExitSucceeded;
}

int RunShow(std::string name, const CommandContext& context) {
  const absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return Fail(context, config.status());
  if (name.empty()) name = config->current_context();
  if (name.empty()) return Fail(context, absl::NotFoundError("there is no current context; ampctl contexts use NAME"));
  const absl::StatusOr<ClientContext> found = FindContext(*config, name);
  if (!found.ok()) return Fail(context, found.status());
  if (context.format == Format::kTable) {
    *context.out << "# " << name << (name == config->current_context() ? ", the current context\n" : "\n")
                 << ToYaml(WithoutSecrets(*found)) << std::flush;
  } else {
    PrintMessage(WithoutSecrets(*found), context.format, *context.out);
  }
  return kExitSucceeded;
}

int RunUse(const std::string& name, const CommandContext& context) {
  absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return Fail(context, config.status());
  const absl::StatusOr<ClientContext> found = FindContext(*config, name);
  if (!found.ok()) return Fail(context, found.status());
  config->set_current_context(name);
  if (const absl::Status status = WriteContexts(ContextsPath(), *config); !status.ok()) return Fail(context, status);
  *context.out << name << " is the current context: " << ServerText(*found) << std::endl;
  return kExitSucceeded;
}

int RunRemove(const std::string& name, const CommandContext& context) {
  absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return Fail(context, config.status());
  if (const absl::Status status = FindContext(*config, name).status(); !status.ok()) return Fail(context, status);
  config->mutable_contexts()->erase(name);
  const bool current = config->current_context() == name;
  if (current) config->clear_current_context();
  if (const absl::Status status = WriteContexts(ContextsPath(), *config); !status.ok()) return Fail(context, status);
  *context.out << name << " removed" << (current ? "; there is no current context now" : "") << std::endl;
  return kExitSucceeded;
}

// They are named from where the command runs, and used from anywhere.
void MakeAbsolute(std::string* path) {
  if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
}

absl::Status Complete(AddOptions* options) {
  ClientContext& added = options->context;
  if (absl::Status status = CheckContextName(options->name); !status.ok()) return status;
  if (absl::Status status = CheckAddress(ServerText(added)); !status.ok()) return status;
  if (added.cert().empty() != added.key().empty())
    return absl::InvalidArgumentError("--cert and --key belong together");
  MakeAbsolute(added.mutable_ca());
  MakeAbsolute(added.mutable_cert());
  MakeAbsolute(added.mutable_key());
  MakeAbsolute(added.mutable_token_file());
  if (!options->token_from_input) return absl::OkStatus();
  if (!added.token_file().empty()) {
    return absl::InvalidArgumentError("give either --token-file or --token-from-input");
  }
  std::string line;
  std::getline(std::cin, line);
  added.set_token(std::string(absl::StripAsciiWhitespace(line)));
  return added.token().empty() ? absl::InvalidArgumentError("--token-from-input: there is none") : absl::OkStatus();
}

int RunAdd(AddOptions options, const CommandContext& context) {
  if (const absl::Status status = Complete(&options); !status.ok()) return Fail(context, status);
  absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return Fail(context, config.status());
  if (config->contexts().contains(options.name) && !options.replace) {
    return Fail(context, absl::AlreadyExistsError(absl::StrCat("there is a context ", options.name,
                                                               " already; --replace puts this one in its place")));
  }
  (*config->mutable_contexts())[options.name] = options.context;
  const bool current = options.use || config->contexts().size() == 1;
  if (current) config->set_current_context(options.name);
  // Whatever would keep it from being used is better told now.
  Server server(ServerText(options.context));
  server.tls = options.context.tls();
  server.ca = options.context.ca();
  server.certificate = options.context.cert();
  server.private_key = options.context.key();
  server.token_file = options.context.token_file();
  server.token = options.context.token();
  server.token_from = "--token-from-input";
  server.insecure = options.context.insecure();
  if (const absl::Status status = OpenChannel(server).status(); !status.ok()) return Fail(context, status);
  if (const absl::Status status = WriteContexts(ContextsPath(), *config); !status.ok()) return Fail(context, status);
  *context.out << options.name << " added" << (current ? "; it is the current context" : "") << std::endl;
  return kExitSucceeded;
}

void AddAdd(CLI::App* contexts, CommandContext* context) {
  CLI::App* verb = contexts->add_subcommand("add", "Keep a server and its credentials under a name");
  const auto options = std::make_shared<AddOptions>();
  ClientContext& added = options->context;
  verb->add_option("NAME", options->name, "Letters, digits, '_', '-' and '.'")->required();
  verb->add_option("--server", *added.mutable_server(), "Where its ampd is")->required()->type_name("HOST:PORT");
  verb->add_flag_callback(
      "--tls", [options] { options->context.set_tls(true); }, "TLS, with the system's authorities");
  verb->add_option("--ca", *added.mutable_ca(), "TLS, with the authorities of this PEM file")->type_name("FILE");
  verb->add_option("--cert", *added.mutable_cert(), "PEM file of a certificate to show")->type_name("FILE");
  verb->add_option("--key", *added.mutable_key(), "PEM file of its private key")->type_name("FILE");
  verb->add_option("--token-file", *added.mutable_token_file(), "File that holds the token; its name alone is kept")
      ->type_name("FILE");
  verb->add_flag("--token-from-input", options->token_from_input, "Keep the token that standard input's first line is");
  verb->add_flag_callback(
      "--insecure", [options] { options->context.set_insecure(true); }, "The token may go to it in plain text");
  verb->add_flag("--replace", options->replace, "In place of the context of this name");
  verb->add_flag("--use", options->use, "Make it the current one, as the first one is in any case");
  verb->footer(
      "Example:\n  ampctl contexts add lab --server trainer:7070 --ca ca.pem \\\n      --token-file ~/.ampd.token "
      "--use");
  verb->callback([options, context] { context->exit_code = RunAdd(*options, *context); });
}

}  // namespace

void AddContexts(CLI::App* app, CommandContext* context) {
  CLI::App* contexts = app->add_subcommand("contexts", "Keep servers by name, with the credentials for each");
  contexts->require_subcommand(1);
  CLI::App* list = contexts->add_subcommand("list", "List them; * marks the current one");
  list->footer("Example:\n  ampctl contexts list");
  list->callback([context] { context->exit_code = RunList(*context); });
  CLI::App* use = contexts->add_subcommand("use", "Talk to this one from now on");
  auto used = std::make_shared<std::string>();
  use->add_option("CONTEXT", *used, "Its name")->required();
  use->footer("Example:\n  ampctl contexts use lab");
  use->callback([used, context] { context->exit_code = RunUse(*used, *context); });
  AddAdd(contexts, context);
  CLI::App* remove = contexts->add_subcommand("remove", "Forget one");
  auto removed = std::make_shared<std::string>();
  remove->add_option("CONTEXT", *removed, "Its name")->required();
  remove->footer("Example:\n  ampctl contexts remove lab");
  remove->callback([removed, context] { context->exit_code = RunRemove(*removed, *context); });
  CLI::App* show = contexts->add_subcommand("show", "Show one, without its token");
  auto shown = std::make_shared<std::string>();
  show->add_option("CONTEXT", *shown, "Its name; default: the current one");
  show->footer("Example:\n  ampctl contexts show lab");
  show->callback([shown, context] { context->exit_code = RunShow(*shown, *context); });
  contexts->footer(
      "They are in ~/.config/ampctl/config.yaml, or the file that AMPCTL_CONFIG names. An option holds before the "
      "environment,\nthat before the context. A server that is named by --server or AMPD_SERVER and is not the "
      "context's sets all of the\ncontext aside, so that no token goes where it does not belong.\n"
      "Example:\n  ampctl contexts add lab --server trainer:7070 --ca ca.pem \\\n      --token-file ~/.ampd.token "
      "--use\n"
      "  ampctl --context lab list");
}

}  // namespace ampd::client
