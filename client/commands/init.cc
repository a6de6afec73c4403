#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/starter.h"

namespace ampd::client {
namespace {

struct InitOptions {
  std::string file;
  std::string preset = "layers";
};

// A file that is there already stays as it is.
absl::Status WriteNew(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  if (file < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<size_t>(count);
  }
  const int error = written < text.size() ? errno : close(file) == 0 ? 0 : errno;
  if (error == 0) return absl::OkStatus();
  unlink(path.c_str());
  return absl::DataLossError(absl::StrCat(path, ": ", strerror(error)));
}

int RunInit(const InitOptions& options, const CommandContext& context) {
  const bool to_output = options.file.empty() || options.file == "-";
  const absl::StatusOr<std::string> text = StarterText(options.preset, to_output ? "" : options.file);
  if (!text.ok()) return Fail(context, text.status());
  if (to_output) {
    *context.out << *text << std::flush;
    return kExitSucceeded;
  }
  if (const absl::Status status = WriteNew(options.file, *text); !status.ok()) return Fail(context, status);
  *context.err << "wrote " << options.file << "; next: ampctl submit " << options.file << " --dry-run" << std::endl;
  return kExitSucceeded;
}

}  // namespace

void AddInit(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("init", "Write a commented job file to begin with");
  auto options = std::make_shared<InitOptions>();
  verb->add_option("FILE", options->file, "Where to; one that is there is left alone. Default: standard output");
  verb->add_option("--preset", options->preset, "What to begin with; the kinds are below")
      ->type_name("KIND")
      ->capture_default_str();
  std::string kinds = "Kinds:\n";
  for (const Starter& starter : Starters()) {
    absl::StrAppend(&kinds, "  ", starter.name, std::string(10 - std::min<size_t>(9, starter.name.size()), ' '),
                    starter.summary, "\n");
  }
  verb->footer(kinds +
               "Example:\n  ampctl init job.yaml && ampctl submit job.yaml --watch\n"
               "  ampctl init --preset resnet photos.yaml");
  verb->callback([options, context] { context->exit_code = RunInit(*options, *context); });
}

}  // namespace ampd::client
