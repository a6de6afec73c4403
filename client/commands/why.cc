#include "client/analysis/why.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"
#include "proto/spec/device_models.h"

namespace ampd::client {
namespace {

constexpr size_t kOthers = 100;

// For a job on a device of a kind whose speed is known; nothing where the server cannot tell.
absl::optional<v1::PlanReport> PlanOf(Connection* connection, const WhyInput& input) {
  const absl::StatusOr<v1::ServerInfo> server = connection->GetServerInfo();
  if (!server.ok() || input.job.devices().empty()) return absl::nullopt;
  const auto device = std::find_if(input.devices.begin(), input.devices.end(),
                                   [&](const auto& d) { return d.id() == input.job.devices(0); });
  if (device == input.devices.end()) return absl::nullopt;
  const v1::DeviceModel* model =
      ModelOfDevice({server->device_models().begin(), server->device_models().end()}, *device);
  if (model == nullptr || !(model->fp32_flops() > 0)) return absl::nullopt;
  v1::PlanJobRequest request;
  *request.mutable_spec() = input.job.spec();
  request.set_device_model(model->name());
  request.add_modes(input.job.spec().precision().mode());
  absl::StatusOr<v1::PlanReport> plan = connection->PlanJob(request);
  if (!plan.ok()) return absl::nullopt;
  return *std::move(plan);
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
  input->plan = PlanOf(connection, *input);
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
