#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"

namespace ampd::client {

void AddRetry(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("retry", "Queue jobs again that failed or were cancelled");
  auto ids = std::make_shared<std::vector<std::string>>();
  verb->add_option("JOB", *ids, "Job ids, or unique prefixes of at least 4 characters")->required();
  verb->footer(
      "They go on from their newest whole checkpoints, with their failures forgotten.\n"
      "Example:\n  ampctl retry 01hq3v7m && ampctl watch 01hq3v7m");
  verb->callback([ids, context] {
    context->exit_code = ForEachJob(
        *ids, *context, [](Connection& connection, const std::string& id) { return connection.RetryJob(id); });
  });
}

}  // namespace ampd::client
