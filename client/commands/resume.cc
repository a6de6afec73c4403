#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"

namespace ampd::client {

void AddResume(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("resume", "Queue paused jobs again, at their old places");
  auto ids = std::make_shared<std::vector<std::string>>();
  verb->add_option("JOB", *ids, "Job ids, or unique prefixes of at least 4 characters")->required();
  verb->footer("Example:\n  ampctl resume 01hq3v7m");
  verb->callback([ids, context] {
    context->exit_code = ForEachJob(
        *ids, *context, [](Connection& connection, const std::string& id) { return connection.ResumeJob(id); });
  });
}

}  // namespace ampd::client
