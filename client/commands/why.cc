#include "client/analysis/why.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

constexpr size_t kOthers = 100;

absl::StatusOr<v1::PlanReport> PlanOf(Connection* connection, const WhyInput& input) {
  const absl::StatusOr<v1::ServerInfo> server = connection->GetServerInfo();
  if (!server.ok()) return server.status();
  const absl::StatusOr<v1::PlanJobRequest> request = FloorRequest(
      input.job, input.events, input.devices, {server->device_models().begin(), server->device_models().end()});
  return request.ok() ? connection->PlanJob(*request) : request.status();
}

absl::Status Fill(Connection* connection, const std::string& id, WhyInput* input) {
  absl::StatusOr<JobAndEvents> found = FetchJob(connection, id);
  if (!found.ok()) return found.status();
  input->job = std::move(found->job);
  input->events = std::move(found->events);
  v1::ListJobsRequest live;
  for (const v1::Job::State state : {v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::CANCELLING}) {
    live.add_states(state);
  }
  // As many as can be told about; pages may have fewer jobs than they could.
  while (input->others.size() < kOthers) {
    const absl::StatusOr<v1::ListJobsResponse> jobs = connection->ListJobs(live);
    if (!jobs.ok()) return jobs.status();
    input->others.insert(input->others.end(), jobs->jobs().begin(), jobs->jobs().end());
    if (jobs->next_page_token().empty()) break;
    live.set_page_token(jobs->next_page_token());
  }
  const absl::StatusOr<v1::ListDevicesResponse> devices = connection->ListDevices();
  if (!devices.ok()) return devices.status();
  input->devices.assign(devices->devices().begin(), devices->devices().end());
  absl::StatusOr<v1::PlanReport> plan = PlanOf(connection, *input);
  if (plan.ok()) {
    input->plan = *std::move(plan);
  } else {
    input->no_plan = std::string(plan.status().message());
  }
  input->now = UnixNow();
  return absl::OkStatus();
}

int RunWhy(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  WhyInput input;
  const absl::Status status = Fill(connection->get(), id, &input);
  if (!status.ok()) return Fail(context, status);
  const std::vector<Finding> findings = Why(input);
  *context.out << (context.format == Format::kTable ? WhyText(input.job, findings) : WhyJson(input.job, findings))
               << std::flush;
  return kExitSucceeded;
}

}  // namespace

void AddWhy(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("why", "Why a job is queued, slow, skipping steps, or failed, and what to try");
  auto id = std::make_shared<std::string>();
  verb->add_option("JOB", *id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->footer("Example:\n  ampctl why 01hq3v7m");
  verb->callback([id, context] { context->exit_code = RunWhy(*id, *context); });
}

}  // namespace ampd::client
