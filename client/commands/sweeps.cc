#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/exit_code.h"
#include "client/output/sweep_text.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

struct SweepsOptions {
  std::string user;
  int limit = 50;
};

// Pages until `limit` sweeps are there or no more are.
absl::StatusOr<v1::ListSweepsResponse> ListUpTo(Connection* connection, const SweepsOptions& options) {
  constexpr int kPage = 200;
  v1::ListSweepsRequest request;
  request.set_user(options.user);
  v1::ListSweepsResponse all;
  do {
    request.set_page_size(std::min(options.limit - all.sweeps_size(), kPage));
    absl::StatusOr<v1::ListSweepsResponse> page = connection->ListSweeps(request);
    if (!page.ok()) return page.status();
    for (v1::SweepSummary& sweep : *page->mutable_sweeps()) all.add_sweeps()->Swap(&sweep);
    all.set_next_page_token(page->next_page_token());
    request.set_page_token(page->next_page_token());
  } while (!all.next_page_token().empty() && all.sweeps_size() < options.limit);
  return all;
}

void PrintTable(const v1::ListSweepsResponse& response, const CommandContext& context) {
  constexpr size_t kName = 1;
  Table table({"ID", "NAME", "USER", ">JOBS", "STATES", "CREATED"});
  for (const v1::SweepSummary& sweep : response.sweeps()) {
    table.Add({sweep.id(), sweep.name(), sweep.user().empty() ? "-" : sweep.user(), absl::StrCat(sweep.count()),
               SweepStates(sweep), DateAndTime(sweep.create_time())});
  }
  *context.out << FittedText(table, kName, context) << std::flush;
}

int RunSweeps(const SweepsOptions& options, const CommandContext& context) {
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListSweepsResponse> response = ListUpTo(connection->get(), options);
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, context);
  } else if (context.format == Format::kJsonl) {
    for (const v1::SweepSummary& sweep : response->sweeps()) PrintMessage(sweep, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
    return kExitSucceeded;
  }
  // The other formats have next_page_token.
  if (!response->next_page_token().empty()) *context.err << "more with --limit" << std::endl;
  return kExitSucceeded;
}

}  // namespace

void AddSweeps(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("sweeps", "List sweeps, the newest first");
  auto options = std::make_shared<SweepsOptions>();
  verb->add_option("--user", options->user, "Only sweeps of this user")->type_name("USER");
  verb->add_option("--limit", options->limit, "At most this many")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->capture_default_str();
  verb->footer("ampctl sweep SWEEP shows the jobs of one.\nExample:\n  ampctl sweeps --user ann");
  verb->callback([options, context] { context->exit_code = RunSweeps(*options, *context); });
}

}  // namespace ampd::client
