// What the verbs of ampctl share. Each verb has a file of its own, which adds a subcommand to the program.
#ifndef AMPD_CLIENT_COMMANDS_COMMAND_H_
#define AMPD_CLIENT_COMMANDS_COMMAND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "client/connection.h"
#include "client/interrupt.h"
#include "client/output/format.h"
#include "client/server.h"

namespace CLI {
class App;
}

namespace ampd::client {

struct CommandContext {
  Server server;
  Format format = Format::kTable;
  std::ostream* out;
  std::ostream* err;
  // Whether `out` is a terminal.
  bool terminal = false;
  // Whether `out` is to have colours.
  bool color = false;
  // Set by the verb that ran.
  int exit_code = 0;
};

// Each adds its verb; the callback sets context->exit_code. `context` outlives `app`.
void AddArtifacts(CLI::App* app, CommandContext* context);
void AddBench(CLI::App* app, CommandContext* context);
void AddCancel(CLI::App* app, CommandContext* context);
void AddCheckpoint(CLI::App* app, CommandContext* context);
void AddCheckpoints(CLI::App* app, CommandContext* context);
void AddCompletion(CLI::App* app, CommandContext* context);
void AddContexts(CLI::App* app, CommandContext* context);
void AddCost(CLI::App* app, CommandContext* context);
void AddDatasets(CLI::App* app, CommandContext* context);
void AddDiff(CLI::App* app, CommandContext* context);
void AddDevices(CLI::App* app, CommandContext* context);
void AddDownload(CLI::App* app, CommandContext* context);
void AddDrain(CLI::App* app, CommandContext* context);
void AddHistogram(CLI::App* app, CommandContext* context);
void AddGet(CLI::App* app, CommandContext* context);
void AddInit(CLI::App* app, CommandContext* context);
void AddList(CLI::App* app, CommandContext* context);
void AddLogs(CLI::App* app, CommandContext* context);
void AddMan(CLI::App* app, CommandContext* context);
void AddPause(CLI::App* app, CommandContext* context);
void AddPlan(CLI::App* app, CommandContext* context);
void AddProfile(CLI::App* app, CommandContext* context);
void AddResume(CLI::App* app, CommandContext* context);
void AddRetry(CLI::App* app, CommandContext* context);
void AddSchema(CLI::App* app, CommandContext* context);
void AddSubmit(CLI::App* app, CommandContext* context);
void AddTokens(CLI::App* app, CommandContext* context);
void AddTop(CLI::App* app, CommandContext* context);
void AddUndrain(CLI::App* app, CommandContext* context);
void AddUpdate(CLI::App* app, CommandContext* context);
void AddSweep(CLI::App* app, CommandContext* context);
void AddSweeps(CLI::App* app, CommandContext* context);
void AddVersion(CLI::App* app, CommandContext* context);
void AddWait(CLI::App* app, CommandContext* context);
void AddWatch(CLI::App* app, CommandContext* context);
void AddWhy(CLI::App* app, CommandContext* context);

// Says what went wrong on context.err and gives the exit code for it.
int Fail(const CommandContext& context, const absl::Status& status);

// An option that gives a field of a request, as its user wrote it ("--priority 10").
struct FieldOption {
  std::string option;
  std::string field;
};

// `status`, with what is wrong with a field told of the option that gave it, where one did.
absl::Status OfOptions(const absl::Status& status, const std::vector<FieldOption>& options);

// What was asked of several jobs, in the format json: one document.
void PrintJobs(const v1::ListJobsResponse& jobs, const CommandContext& context);

// A job in the chosen format: text, JSON, or the spec as resubmittable YAML.
void PrintJob(const v1::Job& job, const CommandContext& context);

// Makes `call` for each of the jobs and shows what it answers: an id and a state a line, or the job in the chosen
// format, of several jobs in json as one document. All are tried; the highest exit code is returned.
int ForEachJob(const std::vector<std::string>& ids, const CommandContext& context,
               const std::function<absl::StatusOr<v1::Job>(Connection&, const std::string&)>& call);

// A file, or a folder of files, that was fetched into `path`.
struct Fetched {
  // What `name` is of: "checkpoint", "artifact".
  std::string kind;
  std::string name;
  std::string path;
  // Of a folder.
  std::optional<int64_t> files;
  int64_t bytes = 0;
};

// A line, or in the other formats one JSON object: {KIND: name, "path", "files", "bytes"}.
void PrintFetched(const Fetched& fetched, const CommandContext& context);

// A sweep in the chosen format.
void PrintSweep(const v1::JobSweep& sweep, const CommandContext& context);

struct FollowOptions {
  std::string job_id;
  uint64_t after_sequence = 0;
  bool quiet = false;
};

// Shows a job's events until it ends and gives the exit code: of the job's end, of what went wrong, or 130 after
// Ctrl-C. In the formats json and yaml it shows the job at its end instead.
int Follow(Connection* connection, const FollowOptions& options, Interrupt* interrupt, const CommandContext& context);

// Says that the job goes on and gives the exit code 130.
int Detach(const std::string& job_id, const CommandContext& context);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_COMMAND_H_
