#include "client/schema/json_schema.h"

#include <CLI/CLI.hpp>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/schema/descriptors.h"

namespace ampd::client {

void AddSchema(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("schema", "Print the JSON schema of job files, for editors");
  verb->footer(
      "Editors with a YAML language server complete and check a job file whose first line is\n"
      "  # yaml-language-server: $schema=ampd-job.schema.json\n"
      "Example:\n  ampctl schema > ampd-job.schema.json");
  verb->callback([context] {
    *context->out << JsonSchemaOf(JobSpecWithComments(), "ampd job file") << std::flush;
    context->exit_code = kExitSucceeded;
  });
}

}  // namespace ampd::client
