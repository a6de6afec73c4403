#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/commands/since.h"
#include "client/exit_code.h"
#include "client/output/color.h"
#include "client/output/event_line.h"
#include "client/output/job_text.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

// Of the table that is not wide.
enum Column : size_t { kId, kName, kState, kMode, kStep, kLoss, kAccuracy, kSkipped, kCreated, kWhy };

// Where the terminal is narrower than the table.
const Table::Fit& NarrowFit() {
  static const Table::Fit& fit = *new Table::Fit{{{kState, 10}, {kName, 10}, {kWhy, 16}},
                                                 {kSkipped, kAccuracy, kCreated, kMode, kLoss, kWhy, kStep}};
  return fit;
}

// Columns of text that is not to be cut.
constexpr int kAll = std::numeric_limits<int>::max();

struct ListOptions {
  std::vector<std::string> states;
  std::vector<std::string> labels;
  std::string user;
  std::string since;
  std::string sweep;
  std::string filter;
  std::string sort;
  int limit = 50;
  bool wide = false;
  bool quiet = false;
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

// As a value in a filter.
std::string Value(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

absl::StatusOr<std::string> LabelCondition(const std::string& label) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(label, absl::MaxSplits('=', 1));
  if (!parts.first.empty() && label.size() > parts.first.size()) {
    return absl::StrCat("labels.", Value(parts.first), " = ", Value(parts.second));
  }
  return absl::InvalidArgumentError(absl::StrCat("--label: ", Quoted(label), " is not KEY=VALUE"));
}

// All that the options ask for, but for states.
absl::StatusOr<std::string> FilterOf(const ListOptions& options, Connection* connection) {
  std::vector<std::string> conditions;
  if (!options.filter.empty()) conditions.push_back(absl::StrCat("(", options.filter, ")"));
  if (!options.user.empty()) conditions.push_back(absl::StrCat("user = ", Value(options.user)));
  for (const std::string& label : options.labels) {
    absl::StatusOr<std::string> condition = LabelCondition(label);
    if (!condition.ok()) return condition.status();
    conditions.push_back(*std::move(condition));
  }
  if (!options.since.empty()) {
    const absl::StatusOr<absl::Time> since = ParseSince(options.since);
    if (!since.ok()) return since.status();
    conditions.push_back(
        absl::StrCat("create_time >= ", Value(absl::FormatTime(absl::RFC3339_full, *since, absl::UTCTimeZone()))));
  }
  if (!options.sweep.empty()) {
    // The filter takes whole ids.
    const absl::StatusOr<v1::JobSweep> sweep = connection->GetSweep(options.sweep);
    if (!sweep.ok()) return sweep.status();
    conditions.push_back(absl::StrCat("sweep = ", Value(sweep->id())));
  }
  // Alone it stands as it was written, so that errors tell the right place.
  if (conditions.size() == 1 && !options.filter.empty()) return options.filter;
  return absl::StrJoin(conditions, " AND ");
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

// Of a failed job, why; of a queued one, why and until when at the latest.
std::string WhyText(const v1::Job& job, int columns) {
  if (job.has_failure()) return Shorten(FailureText(job.failure()), columns);
  if (job.state() != v1::Job::QUEUED || job.queue_message().empty()) return "-";
  const std::string message = Shorten(job.queue_message(), columns);
  if (!job.has_estimated_start_time()) return message;
  return absl::StrCat(message, "; starts by ", DateAndTime(job.estimated_start_time()));
}

void PrintTable(const v1::ListJobsResponse& response, const ListOptions& options, const CommandContext& context) {
  std::vector<std::string> headers = {"ID",    "NAME",      "STATE",    "MODE",   ">STEP",
                                      ">LOSS", ">ACCURACY", ">SKIPPED", "CREATED"};
  if (options.wide) headers.insert(headers.end(), {"USER", ">PRIORITY", "LABELS"});
  headers.emplace_back("WHY");
  Table table(headers);
  if (context.color) table.Paint(kState, ColorOfState);
  const bool whole = options.wide || !context.terminal;
  for (const v1::Job& job : response.jobs()) {
    const v1::JobSummary& summary = job.summary();
    std::vector<std::string> cells = {job.id(),
                                      Shorten(job.spec().name(), whole ? kAll : 40),
                                      StateText(job),
                                      ModeText(job),
                                      StepText(summary),
                                      summary.has_loss() ? Figure(summary.loss()) : "-",
                                      summary.has_accuracy() ? Figure(summary.accuracy()) : "-",
                                      absl::StrCat(summary.steps_skipped()),
                                      DateAndTime(job.create_time())};
    if (options.wide) {
      const std::string labels = LabelsText(job);
      cells.insert(cells.end(), {job.user().empty() ? "-" : job.user(), absl::StrCat(job.spec().resources().priority()),
                                 labels.empty() ? "-" : labels});
    }
    cells.push_back(WhyText(job, whole ? kAll : 80));
    table.Add(cells);
  }
  *context.out << (options.wide ? table.ToString() : Fitted(table, NarrowFit(), context)) << std::flush;
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
  const absl::StatusOr<std::string> filter = FilterOf(options, connection->get());
  if (!filter.ok()) return Fail(context, filter.status());
  request.set_filter(*filter);
  request.set_order_by(options.sort);
  const absl::StatusOr<v1::ListJobsResponse> response = ListUpTo(connection->get(), options.limit, request);
  if (!response.ok()) {
    std::vector<FieldOption> given = {{"--sort", "order_by"}};
    if (!options.filter.empty()) given.push_back({"--filter", "filter"});
    return Fail(context, OfOptions(response.status(), given));
  }
  if (options.quiet) {
    for (const v1::Job& job : response->jobs()) *context.out << job.id() << '\n';
    context.out->flush();
  } else if (context.format == Format::kTable) {
    PrintTable(*response, options, context);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Job& job : response->jobs()) PrintMessage(job, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
    return kExitSucceeded;
  }
  // The other formats have next_page_token.
  if (!response->next_page_token().empty()) *context.err << "more with --limit" << std::endl;
  return kExitSucceeded;
}

}  // namespace

void AddList(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("list", "List jobs, the newest first, or those that are looked for");
  auto options = std::make_shared<ListOptions>();
  verb->add_option("--state", options->states,
                   "Only jobs in these states, with commas between them; may be given again")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("STATE");
  verb->add_option("--user", options->user, "Only jobs of this user")->type_name("USER");
  verb->add_option("--label", options->labels, "Only jobs with this label; may be given again")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  verb->add_option("--since", options->since, "Only jobs submitted since then: an age (30m, 2h, 7d) or a time")
      ->type_name("TIME");
  verb->add_option("--sweep", options->sweep, "Only jobs of this sweep: its id, or a unique prefix")
      ->type_name("SWEEP");
  verb->add_option("--filter", options->filter,
                   "Only jobs for which this holds: state, user, name, labels.KEY, sweep, priority, create_time with "
                   "= != < <= > >= and : (has), joined by AND, OR, NOT and parentheses")
      ->type_name("EXPRESSION");
  verb->add_option("--sort", options->sort,
                   "By create_time, priority, state, name or user, with asc (default) or desc behind it; default "
                   "\"create_time desc\"")
      ->type_name("ORDER");
  verb->add_option("--limit", options->limit, "At most this many")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->capture_default_str();
  verb->add_flag("--wide", options->wide,
                 "Every column, with all of its text, also where the terminal is narrower than that");
  verb->add_flag("-q,--quiet", options->quiet, "Print the jobs' ids, and nothing else");
  verb->footer(
      "Example:\n  ampctl list --state running,queued\n  ampctl list --user ann --label team=vision --since "
      "2h\n"
      "  ampctl list --filter 'priority >= 5 AND NOT (state = FAILED OR name:test)' \\\n      --sort 'priority desc'");
  verb->callback([options, context] { context->exit_code = RunList(*options, *context); });
}

}  // namespace ampd::client
