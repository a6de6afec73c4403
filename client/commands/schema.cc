#include <CLI/CLI.hpp>
#include <memory>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/schema/descriptors.h"
#include "client/schema/json_schema.h"
#include "client/schema/markdown.h"

namespace ampd::client {
namespace {

constexpr char kIntroduction[] =
    "<!-- Made from the comments of proto/ampd/v1 by `ninja ampd_references`; changes belong there. -->\n"
    "\n"
    "A job file is YAML or JSON. `ampctl init job.yaml` writes one with comments to begin with, `ampctl schema` prints "
    "the schema by which\n"
    "editors complete and check one, `ampctl submit FILE --dry-run` checks it and `-o yaml` with that shows it with "
    "every default filled in.\n"
    "Unknown fields, nulls and fields that are given twice are refused with their line. The names of values (`FP16`) "
    "may be written in any\n"
    "case. What is not given has its default; where none is named, a number is 0, a truth false, and texts, lists and "
    "the rest are\n"
    "empty. A path such as `model.layers[].conv2d` says where something stands: `[]` is each element of a list. The "
    "same paths, with numbers\n"
    "for elements (`model.layers[0].conv2d.filters`), are those of `--set` and of sweeps. Where fields exclude "
    "each other, what `--set`\n"
    "or a point of a sweep gives takes the place of what the file does: `--set train.steps=500` that of "
    "`train.epochs`. Where a list says how a\n"
    "window lies (`kernel`, `stride`, `dilation`, `size`, `pads`, `output_padding`), one number may be given without "
    "a list and means all\n"
    "directions alike: `kernel: 3` is `kernel: [3, 3]`.\n";

}  // namespace

void AddSchema(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("schema", "Print the JSON schema of job files, for editors");
  auto markdown = std::make_shared<bool>(false);
  verb->add_flag("--markdown", *markdown, "Print the reference of job files instead, for people");
  verb->footer(
      "Editors with a YAML language server complete and check a job file whose first line is\n"
      "  # yaml-language-server: $schema=ampd-job.schema.json\n"
      "Example:\n  ampctl schema > ampd-job.schema.json");
  verb->callback([markdown, context] {
    const google::protobuf::Descriptor& spec = JobSpecWithComments();
    *context->out << (*markdown ? MarkdownOf(spec, "The job file", kIntroduction) : JsonSchemaOf(spec, "ampd job file"))
                  << std::flush;
    context->exit_code = kExitSucceeded;
  });
}

}  // namespace ampd::client
