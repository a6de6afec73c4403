#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/exit_code.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

// "the best: accuracy 0.97"; `metric` may be empty.
std::string BestText(const v1::Checkpoint& checkpoint, const std::string& metric) {
  if (!checkpoint.has_best_metric()) return "the best";
  return absl::StrCat("the best: ", Clean(metric), metric.empty() ? "" : " ", Figure(checkpoint.best_metric()));
}

// Name of the metric whose best checkpoint the job keeps; empty where none of them has one, or it cannot be had.
std::string MetricOf(const v1::ListCheckpointsResponse& response, const std::string& id, Connection* connection) {
  const auto has_metric = [](const v1::Checkpoint& checkpoint) { return checkpoint.has_best_metric(); };
  if (!absl::c_any_of(response.checkpoints(), has_metric)) return "";
  const absl::StatusOr<v1::Job> job = connection->GetJob(id);
  return job.ok() ? job->spec().checkpoint().keep_best() : "";
}

void PrintTable(const v1::ListCheckpointsResponse& response, const std::string& metric, const CommandContext& context) {
  constexpr size_t kState = 4;
  Table table({"CHECKPOINT", ">STEP", ">SIZE", "WRITTEN", "STATE"});
  for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
    std::string state = checkpoint.damage().empty() ? "whole" : absl::StrCat("damaged: ", Clean(checkpoint.damage()));
    if (checkpoint.damage().empty() && checkpoint.best()) absl::StrAppend(&state, ", ", BestText(checkpoint, metric));
    if (checkpoint.in_mirror()) absl::StrAppend(&state, "; the mirror has a copy");
    table.Add({Clean(checkpoint.name()), absl::StrCat(checkpoint.step()),
               checkpoint.size_bytes() > 0 ? Bytes(checkpoint.size_bytes()) : "-",
               checkpoint.has_time() ? DateAndTime(checkpoint.time()) : "-", state});
  }
  *context.out << FittedText(table, kState, context) << std::flush;
}

int RunCheckpoints(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListCheckpointsResponse> response = (*connection)->ListCheckpoints(id);
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, MetricOf(*response, id, connection->get()), context);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Checkpoint& checkpoint : response->checkpoints()) {
      PrintMessage(checkpoint, context.format, *context.out);
    }
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddCheckpoints(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("checkpoints", "List a job's checkpoints, the newest first");
  auto id = std::make_shared<std::string>();
  verb->add_option("JOB", *id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->footer(
      "Of one that is damaged or gone, `download` fetches the copy in the server's mirror_dir, where there is one.\n"
      "Example:\n  ampctl checkpoints 01hq3v7m");
  verb->callback([id, context] { context->exit_code = RunCheckpoints(*id, *context); });
}

}  // namespace ampd::client
