#include "client/commands/command.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"
#include "client/output/text.h"
#include "client/output/watch_view.h"
#include "client/watch.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"

namespace ampd::client {

namespace {

// What TLS may lack, by the words of gRPC and OpenSSL.
std::string TlsHint(const Server& server, const absl::Status& status) {
  const absl::string_view message = status.message();
  if (!absl::IsUnavailable(status)) return "";
  if (absl::StrContains(message, "certificate verify failed")) {
    return " (its authority is not among those trusted: --ca FILE names another)";
  }
  const bool plain = !server.tls && server.ca.empty() && server.certificate.empty();
  return plain && !*server.answered && absl::StrContains(message, "Socket closed")
             ? " (if it speaks TLS: --tls, or --ca FILE)"
             : "";
}

// Who was let in before and is not any more.
std::string TokenHint(const absl::Status& status) {
  const absl::string_view message = status.message();
  const bool is_over = absl::StrContains(message, " expired at ") || absl::StrContains(message, " was revoked");
  if (!absl::IsUnauthenticated(status) || !is_over) return "";
  if (absl::StartsWith(message, "the certificate")) return " (--cert FILE and --key FILE take another)";
  return " (an administrator makes another: ampctl tokens create; --token-file FILE or AMPD_TOKEN takes it)";
}

void SayThatItContinues(const std::string& job_id, const CommandContext& context) {
  *context.err << "the job continues: ampctl watch " << job_id << std::endl;
}

}  // namespace

int Fail(const CommandContext& context, const absl::Status& status) {
  std::ostream& err = *context.err;
  if (absl::IsUnavailable(status)) {
    err << "ampctl: ampd at " << context.server.address << " is unavailable: ";
  } else if (absl::IsDeadlineExceeded(status)) {
    err << "ampctl: no answer from ampd at " << context.server.address << ": ";
  } else if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    err << "ampctl: not authorised: ";
  } else {
    err << "ampctl: ";
  }
  const std::string message(status.message());
  err << (message.empty() ? absl::StatusCodeToString(status.code()) : Clean(message)) << TlsHint(context.server, status)
      << TokenHint(status) << std::endl;
  return ExitCodeOf(status);
}

absl::Status OfOptions(const absl::Status& status, const std::vector<FieldOption>& options) {
  std::vector<FieldViolation> violations = FieldViolationsOf(status);
  if (violations.empty()) return status;
  for (FieldViolation& violation : violations) {
    const auto option = absl::c_find_if(options, [&](const FieldOption& one) { return one.field == violation.field; });
    if (option != options.end()) violation.field = option->option;
  }
  return InvalidFields(violations);
}

void PrintJob(const v1::Job& job, const CommandContext& context) {
  if (context.format == Format::kTable) {
    *context.out << JobText(job) << std::flush;
  } else if (context.format == Format::kYaml) {
    *context.out << ResubmittableYaml(job) << std::flush;
  } else {
    PrintMessage(job, context.format, *context.out);
  }
}

void PrintJobs(const v1::ListJobsResponse& jobs, const CommandContext& context) {
  if (jobs.jobs().empty()) {
    // A list without elements would be left out.
    *context.out << "{\"jobs\": []}" << std::endl;
  } else {
    PrintMessage(jobs, Format::kJson, *context.out);
  }
}

void PrintFetched(const Fetched& fetched, const CommandContext& context) {
  if (context.format == Format::kTable) {
    const std::string files = fetched.files ? absl::StrCat(*fetched.files, " files, ") : "";
    *context.out << Clean(fetched.name) << ": " << files << Bytes(fetched.bytes) << " in " << fetched.path << std::endl;
    return;
  }
  const std::string files = fetched.files ? absl::StrCat(", \"files\": ", *fetched.files) : "";
  *context.out << "{" << QuoteJson(fetched.kind) << ": " << QuoteJson(fetched.name)
               << ", \"path\": " << QuoteJson(fetched.path) << files << ", \"bytes\": " << fetched.bytes << "}"
               << std::endl;
}

int ForEachJob(const std::vector<std::string>& ids, const CommandContext& context,
               const std::function<absl::StatusOr<v1::Job>(Connection&, const std::string&)>& call) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  int exit_code = kExitSucceeded;
  const bool one_document = context.format == Format::kJson && ids.size() > 1;
  v1::ListJobsResponse jobs;
  for (const std::string& id : ids) {
    const absl::StatusOr<v1::Job> job = call(**connection, id);
    if (!job.ok()) {
      exit_code = std::max(exit_code, Fail(context, job.status()));
    } else if (context.format == Format::kTable) {
      *context.out << job->id() << " " << StateText(*job) << std::endl;
    } else if (one_document) {
      *jobs.add_jobs() = *job;
    } else {
      PrintJob(*job, context);
    }
  }
  if (one_document) PrintJobs(jobs, context);
  return exit_code;
}

int Detach(const std::string& job_id, const CommandContext& context) {
  *context.err << "detached; ";
  SayThatItContinues(job_id, context);
  return kExitInterrupted;
}

int Follow(Connection* connection, const FollowOptions& options, Interrupt* interrupt, const CommandContext& context) {
  const bool job_at_end = context.format == Format::kJson || context.format == Format::kYaml;
  WatchViewOptions view_options;
  view_options.format = context.format;
  view_options.terminal = context.terminal;
  view_options.color = context.color;
  view_options.quiet = options.quiet || job_at_end;
  view_options.columns = [] { return TerminalColumns(STDOUT_FILENO); };
  view_options.err = context.err;
  const std::unique_ptr<WatchView> view = MakeWatchView(view_options, context.out);

  WatchOptions watch;
  watch.job_id = options.job_id;
  watch.after_sequence = options.after_sequence;
  const absl::StatusOr<v1::StateChange> end =
      WatchToTheEnd(connection, watch, interrupt,
                    {.on_event = [&](const v1::JobEvent& event) { view->OnEvent(event); },
                     .on_lost = [&](const absl::Status& status) { view->OnLost(status); },
                     .on_resumed = [&] { view->OnResumed(); }});
  if (!end.ok()) {
    view->OnDetach();
    if (interrupt->raised()) return Detach(options.job_id, context);
    const int code = Fail(context, end.status());
    if (absl::IsUnauthenticated(end.status())) SayThatItContinues(options.job_id, context);
    return code;
  }
  view->OnEnd(*end);
  if (job_at_end) {
    const absl::StatusOr<v1::Job> job = connection->GetJob(options.job_id);
    if (!job.ok()) return Fail(context, job.status());
    PrintJob(*job, context);
  }
  return ExitCodeOf(end->to());
}

}  // namespace ampd::client
