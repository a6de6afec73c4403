#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/sweep_text.h"

namespace ampd::client {
namespace {

struct SweepOptions {
  std::string id;
  std::string sort = "index";
  bool quiet = false;
};

SweepOrder OrderOf(const std::string& column) {
  if (absl::EqualsIgnoreCase(column, "step")) return SweepOrder::kStep;
  if (absl::EqualsIgnoreCase(column, "loss")) return SweepOrder::kLoss;
  if (absl::EqualsIgnoreCase(column, "eval_loss")) return SweepOrder::kEvalLoss;
  if (absl::EqualsIgnoreCase(column, "accuracy")) return SweepOrder::kAccuracy;
  return SweepOrder::kIndex;
}

int RunSweep(const SweepOptions& options, const CommandContext& context) {
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  absl::StatusOr<v1::JobSweep> sweep = (*connection)->GetSweep(options.id);
  if (!sweep.ok()) return Fail(context, sweep.status());
  SortSweep(OrderOf(options.sort), &*sweep);
  if (options.quiet) {
    for (const v1::Job& job : sweep->jobs()) *context.out << job.id() << '\n';
    context.out->flush();
  } else {
    PrintSweep(*sweep, context);
  }
  return kExitSucceeded;
}

}  // namespace

void PrintSweep(const v1::JobSweep& sweep, const CommandContext& context) {
  if (context.format != Format::kTable) return PrintMessage(sweep, context.format, *context.out);
  *context.out << SweepText(sweep, {.color = context.color, .cuts = context.terminal}) << "sweep " << sweep.id() << ", "
               << SweepCounts(sweep) << std::endl;
}

void AddSweep(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("sweep", "Show a sweep's jobs: what each sets, its state, its newest figures");
  auto options = std::make_shared<SweepOptions>();
  verb->add_option("SWEEP", options->id, "Its id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("--sort", options->sort,
                   "The best job first: by step, loss, eval_loss or accuracy, those without that figure last; default: "
                   "index")
      ->check(CLI::IsMember({"index", "step", "loss", "eval_loss", "accuracy"}, CLI::ignore_case))
      ->type_name("COLUMN");
  verb->add_flag("-q,--quiet", options->quiet, "Print the jobs' ids, in that order, and nothing else");
  verb->footer(
      "A job file with sweep: grid or list makes one; ampctl cancel --sweep SWEEP ends it, "
      "ampctl sweeps lists all.\n"
      "Example:\n  ampctl sweep 01hq3v7m\n  ampctl sweep 01hq3v7m --sort accuracy -q | head -1");
  verb->callback([options, context] { context->exit_code = RunSweep(*options, *context); });
}

}  // namespace ampd::client
