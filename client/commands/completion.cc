#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/completion/scripts.h"
#include "client/exit_code.h"

namespace ampd::client {

void AddCompletion(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("completion", "Print a script that completes ampctl's command line in a shell");
  auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->footer(
      "Verbs, options and their values are completed, ids of jobs and devices as the server tells them.\n"
      "Example:\n  source <(ampctl completion bash)   # or zsh; for good: in ~/.bashrc, ~/.zshrc\n"
      "  ampctl completion fish > ~/.config/fish/completions/ampctl.fish");
  verb->callback([shell, context] {
    *context->out << CompletionScript(*shell) << std::flush;
    context->exit_code = kExitSucceeded;
  });
}

}  // namespace ampd::client
