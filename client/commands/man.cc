#include <CLI/CLI.hpp>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/man_page.h"

namespace ampd::client {

void AddMan(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("man", "Print the manual page");
  verb->footer("It is this help, all of it, as roff.\nExample:\n  ampctl man | man -l -");
  verb->callback([app, context] {
    *context->out << ManPage(*app) << std::flush;
    context->exit_code = kExitSucceeded;
  });
}

}  // namespace ampd::client
