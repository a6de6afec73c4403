#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

struct UpdateOptions {
  std::vector<std::string> ids;
  std::optional<int> priority;
  // KEY=VALUE.
  std::vector<std::string> labels;
  std::vector<std::string> removed;
};

absl::StatusOr<v1::UpdateJobRequest> RequestOf(const UpdateOptions& options) {
  v1::UpdateJobRequest request;
  if (options.priority) request.set_priority(*options.priority);
  for (const std::string& label : options.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--label: expected KEY=VALUE, got '", label, "'"));
    }
    (*request.mutable_set_labels())[label.substr(0, equals)] = label.substr(equals + 1);
  }
  for (const std::string& key : options.removed) request.add_remove_labels(key);
  if (!options.priority && options.labels.empty() && options.removed.empty()) {
    return absl::InvalidArgumentError("nothing to change: give --priority, --label or --remove-label");
  }
  return request;
}

// For what is wrong with the fields that they give.
std::vector<FieldOption> OptionsOf(const UpdateOptions& options) {
  std::vector<FieldOption> given;
  if (options.priority) given.push_back({absl::StrCat("--priority ", *options.priority), "priority"});
  for (const std::string& label : options.labels) {
    given.push_back({absl::StrCat("--label ", label), absl::StrCat("labels.", label.substr(0, label.find('=')))});
  }
  if (!options.removed.empty()) {
    given.push_back({absl::StrCat("--remove-label ", absl::StrJoin(options.removed, " ")), "remove_labels"});
  }
  return given;
}

int RunUpdate(const UpdateOptions& options, const CommandContext& context) {
  const absl::StatusOr<v1::UpdateJobRequest> request = RequestOf(options);
  if (!request.ok()) return Fail(context, request.status());
  return ForEachJob(options.ids, context,
                    [&](Connection& connection, const std::string& id) -> absl::StatusOr<v1::Job> {
                      v1::UpdateJobRequest of_job = *request;
                      of_job.set_job_id(id);
                      absl::StatusOr<v1::Job> job = connection.UpdateJob(of_job);
                      if (!job.ok()) return OfOptions(job.status(), OptionsOf(options));
                      return job;
                    });
}

}  // namespace

void AddUpdate(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("update", "Change the priority or the labels of jobs that have not ended");
  auto options = std::make_shared<UpdateOptions>();
  verb->add_option("JOB", options->ids, "Job ids, or unique prefixes of at least 4 characters")->required();
  verb->add_option("--priority", options->priority,
                   "Higher runs first, -1000 to 1000; without an administrator's token up to what the server allows")
      ->type_name("N");
  verb->add_option("--label", options->labels, "Put this label on; may be given again")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  verb->add_option("--remove-label", options->removed, "Take the label of this name off; may be given again")
      ->allow_extra_args(false)
      ->type_name("KEY");
  verb->footer("Example:\n  ampctl update 01hq3v7m --priority 10 --label team=vision");
  verb->callback([options, context] { context->exit_code = RunUpdate(*options, *context); });
}

}  // namespace ampd::client
