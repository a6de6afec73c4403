#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

struct ListOptions {
  std::vector<std::string> states;
  int limit = 50;
};

absl::StatusOr<v1::Job::State> ParseState(const std::string& text) {
  v1::Job::State state;
  if (v1::Job::State_Parse(absl::AsciiStrToUpper(text), &state) && state != v1::Job::STATE_UNSPECIFIED) return state;
  std::vector<std::string> names;
  for (int i = 1; i < v1::Job::State_descriptor()->value_count(); ++i) {
    names.push_back(v1::Job::State_descriptor()->value(i)->name());
  }
  return absl::InvalidArgumentError(absl::StrCat("--state: no such state ", Quoted(text), DidYouMean(text, names),
                                                 " (one of ", absl::StrJoin(names, ", "), ")"));
}

// Pages until `limit` jobs are there or no more are.
absl::StatusOr<v1::ListJobsResponse> ListUpTo(Connection* connection, int limit, v1::ListJobsRequest request) {
  constexpr int kPage = 200;
  v1::ListJobsResponse all;
  do {
    request.set_page_size(std::min(limit - all.jobs_size(), kPage));
    absl::StatusOr<v1::ListJobsResponse> page = connection->ListJobs(request);
    if (!page.ok()) return page.status();
    for (v1::Job& job : *page->mutable_jobs()) all.add_jobs()->Swap(&job);
    all.set_next_page_token(page->next_page_token());
    request.set_page_token(page->next_page_token());
  } while (!all.next_page_token().empty() && all.jobs_size() < limit);
  return all;
}

std::string StepText(const v1::JobSummary& summary) {
  return summary.total_steps() > 0 ? absl::StrCat(summary.step(), "/", summary.total_steps()) : "-";
}

// Of a queued job, why, and until when at the latest.
std::string WaitText(const v1::Job& job) {
  if (job.state() != v1::Job::QUEUED || job.queue_message().empty()) return "-";
  const std::string message = Truncate(job.queue_message(), 80);
  if (!job.has_estimated_start_time()) return message;
  return absl::StrCat(message, "; starts by ", DateAndTime(job.estimated_start_time()));
}

void PrintTable(const v1::ListJobsResponse& response, std::ostream& out) {
  Table table({"ID", "NAME", "STATE", "MODE", ">STEP", ">LOSS", ">ACCURACY", ">SKIPPED", "CREATED", "WAITS"});
  for (const v1::Job& job : response.jobs()) {
    const v1::JobSummary& summary = job.summary();
    table.Add({job.id(), Truncate(job.spec().name(), 40), StateText(job), ModeText(job), StepText(summary),
               summary.has_loss() ? Figure(summary.loss()) : "-",
               summary.has_accuracy() ? Figure(summary.accuracy()) : "-", absl::StrCat(summary.steps_skipped()),
               DateAndTime(job.create_time()), WaitText(job)});
  }
  out << table.ToString();
  if (!response.next_page_token().empty()) out << "more with --limit\n";
  out << std::flush;
}

int RunList(const ListOptions& options, const CommandContext& context) {
  v1::ListJobsRequest request;
  for (const std::string& text : options.states) {
    const absl::StatusOr<v1::Job::State> state = ParseState(text);
    if (!state.ok()) return Fail(context, state.status());
    request.add_states(*state);
  }
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListJobsResponse> response = ListUpTo(connection->get(), options.limit, request);
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, *context.out);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Job& job : response->jobs()) PrintMessage(job, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddList(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("list", "List jobs, the newest first");
  auto options = std::make_shared<ListOptions>();
  verb->add_option("--state", options->states, "Only jobs in this state; may be given again")->allow_extra_args(false);
  verb->add_option("--limit", options->limit, "At most this many")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb->footer("Example:\n  ampctl list --state running --state queued");
  verb->callback([options, context] { context->exit_code = RunList(*options, *context); });
}

}  // namespace ampd::client
