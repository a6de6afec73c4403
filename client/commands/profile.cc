#include "client/analysis/profile.h"

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

const std::map<std::string, ProfileBy> kBy = {{"node", ProfileBy::kNode},
                                              {"layer", ProfileBy::kLayer},
                                              {"op", ProfileBy::kOp},
                                              {"stage", ProfileBy::kStage},
                                              {"kernel", ProfileBy::kKernel}};

struct ProfileOptions {
  std::string id;
  int64_t steps = 20;
  std::string by = "node";
  int top = 20;
  bool last = false;
  int timeout_seconds = 600;
};

absl::StatusOr<v1::StepProfile> Fetch(Connection* connection, const ProfileOptions& options) {
  if (!options.last) {
    v1::ProfileJobRequest request;
    request.set_job_id(options.id);
    request.set_steps(options.steps);
    request.set_kernels(kBy.at(options.by) == ProfileBy::kKernel);
    return connection->ProfileJob(request, absl::Seconds(options.timeout_seconds));
  }
  const absl::StatusOr<JobAndEvents> found = FetchJob(connection, options.id);
  if (!found.ok()) return found.status();
  return NewestProfile(found->events);
}

int RunProfile(const ProfileOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::StepProfile> profile = Fetch(connection->get(), options);
  if (!profile.ok()) return Fail(context, profile.status());
  if (context.format != Format::kTable) {
    PrintMessage(*profile, context.format, *context.out);
    return kExitSucceeded;
  }
  const absl::StatusOr<std::string> text = ProfileText(*profile, kBy.at(options.by), options.top);
  if (!text.ok()) return Fail(context, text.status());
  *context.out << *text << std::flush;
  return kExitSucceeded;
}

}  // namespace

void AddProfile(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("profile", "Where the time of a running job's next steps goes");
  auto options = std::make_shared<ProfileOptions>();
  verb->add_option("JOB", options->id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("--steps", options->steps, "Steps to profile")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  verb->add_option("--by", options->by,
                   "What a row is: a node of the plan, a layer, an op, a stage; or a GPU's kernel, which attaches "
                   "NVIDIA's CUPTI to the job for good")
      ->check(CLI::IsMember({"node", "layer", "op", "stage", "kernel"}))
      ->type_name("WHAT")
      ->capture_default_str();
  verb->add_option("--top", options->top, "Rows to show")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  verb->add_flag("--last", options->last, "Show the job's newest profile again; also of one that has ended");
  verb->add_option("--timeout", options->timeout_seconds, "Seconds to wait; the job is profiled all the same")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  verb->footer("Example:\n  ampctl profile 01hq3v7m --steps 50\n  ampctl profile 01hq3v7m --last --by layer");
  verb->callback([options, context] { context->exit_code = RunProfile(*options, *context); });
}

}  // namespace ampd::client
