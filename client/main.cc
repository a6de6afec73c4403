// ampctl: submits jobs to ampd, watches them and fetches what they learned.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"

namespace {

using ampd::client::CommandContext;
using ampd::client::Format;

const std::map<std::string, Format> kFormats = {
    {"table", Format::kTable}, {"json", Format::kJson}, {"jsonl", Format::kJsonl}, {"yaml", Format::kYaml}};

void AddGlobalOptions(CLI::App* app, CommandContext* context) {
  app->add_option("--server", context->server, "HOST:PORT of ampd; default 127.0.0.1:7070")
      ->envname("AMPD_SERVER")
      ->type_name("HOST:PORT");
  app->add_option_function<std::string>(
         "-o,--output",
         [context](const std::string& name) { context->format = kFormats.at(CLI::detail::to_lower(name)); },
         "table (default), json, jsonl or yaml")
      ->check(CLI::IsMember({"table", "json", "jsonl", "yaml"}, CLI::ignore_case))
      ->type_name("");
  app->set_version_flag("--version", "ampctl " AMPD_VERSION);
}

void AddVerbs(CLI::App* app, CommandContext* context) {
  ampd::client::AddSubmit(app, context);
  ampd::client::AddWatch(app, context);
  ampd::client::AddWait(app, context);
  ampd::client::AddGet(app, context);
  ampd::client::AddList(app, context);
  ampd::client::AddCancel(app, context);
  ampd::client::AddDevices(app, context);
  ampd::client::AddDownload(app, context);
  ampd::client::AddVersion(app, context);
}

}  // namespace

int main(int argc, char** argv) {
  // What gRPC logs of a connection, ampctl says itself.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  CommandContext context;
  context.out = &std::cout;
  context.err = &std::cerr;
  context.terminal = isatty(STDOUT_FILENO) == 1;
  CLI::App app("Submits training jobs to ampd, watches them and fetches their checkpoints.", "ampctl");
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalOptions(&app, &context);
  AddVerbs(&app, &context);
  app.footer(
      "Exit codes: 0 succeeded, 1 job failed, 2 usage or bad spec, 3 cancelled, 4 server unreachable, 5 not "
      "authorised.\nExample:\n  ampctl submit glyphs-convnet.yaml --watch");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : ampd::client::kExitUsage;
  }
  return context.exit_code;
}
