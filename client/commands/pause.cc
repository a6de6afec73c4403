#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"

namespace ampd::client {

void AddPause(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("pause", "Hold jobs back; a running one writes a checkpoint and gives its devices back");
  auto ids = std::make_shared<std::vector<std::string>>();
  verb->add_option("JOB", *ids, "Job ids, or unique prefixes of at least 4 characters")->required();
  verb->footer(
      "The job is PAUSED once its worker has stopped; `ampctl resume` queues it again at its old place.\n"
      "Example:\n  ampctl pause 01hq3v7m");
  verb->callback([ids, context] {
    context->exit_code = ForEachJob(
        *ids, *context, [](Connection& connection, const std::string& id) { return connection.PauseJob(id); });
  });
}

}  // namespace ampd::client
