#include "client/completion/values.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/access.h"
#include "client/connection.h"
#include "client/contexts.h"
#include "client/output/job_text.h"
#include "client/output/sweep_text.h"
#include "client/output/text.h"
#include "client/schema/descriptors.h"
#include "client/starter.h"

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using v1::Job;

constexpr absl::Duration kPatience = absl::Seconds(1);

// The jobs that the verb can do something with; empty: any.
std::vector<Job::State> StatesFor(const std::string& verb) {
  const std::vector<Job::State> live = {Job::QUEUED, Job::STARTING, Job::RUNNING,    Job::PREEMPTING,
                                        Job::PAUSED, Job::RETRYING, Job::RECOVERING, Job::CANCELLING};
  static const auto& states = *new std::map<std::string, std::vector<Job::State>>{
      {"cancel", live},
      {"pause", live},
      {"update", live},
      {"wait", live},
      {"watch", {}},
      {"checkpoint", {Job::RUNNING}},
      {"resume", {Job::PAUSED}},
      {"retry", {Job::FAILED, Job::CANCELLED}},
  };
  const auto found = states.find(verb);
  return found == states.end() ? std::vector<Job::State>() : found->second;
}

std::unique_ptr<Connection> Connect(const std::vector<std::string>& globals) {
  Server server;
  CLI::App app;
  app.allow_extras();
  AddAccessOptions(&app, &server);
  std::vector<const char*> argv = {"ampctl"};
  for (const std::string& word : globals) argv.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError&) {
    return nullptr;
  }
  server.timeout = kPatience;
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(server);
  return connection.ok() ? *std::move(connection) : nullptr;
}

std::vector<Job> ListJobs(const ValueQuery& query) {
  constexpr int kMostJobs = 100;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return {};
  v1::ListJobsRequest request;
  request.set_page_size(kMostJobs);
  for (const Job::State state : StatesFor(query.verb)) request.add_states(state);
  const absl::StatusOr<v1::ListJobsResponse> response = connection->ListJobs(request);
  if (!response.ok()) return {};
  return {response->jobs().begin(), response->jobs().end()};
}

std::vector<Candidate> Jobs(const ValueQuery& query) {
  std::vector<Candidate> jobs;
  for (const Job& job : ListJobs(query)) {
    jobs.push_back({Clean(job.id()), absl::StrCat(Clean(job.spec().name()), ", ", Job::State_Name(job.state()))});
  }
  return jobs;
}

std::vector<Candidate> Sweeps(const ValueQuery& query) {
  std::vector<Candidate> sweeps;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return sweeps;
  const absl::StatusOr<v1::ListSweepsResponse> response = connection->ListSweeps({});
  if (!response.ok()) return sweeps;
  for (const v1::SweepSummary& sweep : response->sweeps()) {
    sweeps.push_back({Clean(sweep.id()), absl::StrCat(Clean(sweep.name()), ", ", SweepStates(sweep))});
  }
  return sweeps;
}

std::vector<Candidate> Devices(const ValueQuery& query) {
  std::vector<Candidate> devices;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return devices;
  const absl::StatusOr<v1::ListDevicesResponse> response = connection->ListDevices();
  if (!response.ok()) return devices;
  for (const v1::Device& device : response->devices()) devices.push_back({Clean(device.id()), Clean(device.name())});
  return devices;
}

std::vector<Candidate> DeviceModels(const ValueQuery& query) {
  std::vector<Candidate> models;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return models;
  const absl::StatusOr<v1::ServerInfo> server = connection->GetServerInfo();
  if (!server.ok()) return models;
  for (const v1::DeviceModel& model : server->device_models()) models.push_back({Clean(model.name()), ""});
  return models;
}

std::vector<Candidate> Datasets(const ValueQuery& query) {
  std::vector<Candidate> datasets;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return datasets;
  const absl::StatusOr<v1::ListDatasetsResponse> response = connection->ListDatasets("");
  if (!response.ok()) return datasets;
  for (const v1::Dataset& one : response->datasets()) {
    datasets.push_back({Clean(one.name()), Bytes(one.size_bytes())});
  }
  return datasets;
}

std::vector<Candidate> Tokens(const ValueQuery& query) {
  std::vector<Candidate> tokens;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr) return tokens;
  const absl::StatusOr<v1::ListTokensResponse> response = connection->ListTokens();
  if (!response.ok()) return tokens;
  for (const v1::Token& token : response->tokens()) {
    tokens.push_back({Clean(token.id()), absl::StrCat(Clean(token.user()), ", ", v1::Role_Name(token.role()))});
  }
  return tokens;
}

std::vector<Candidate> Checkpoints(const ValueQuery& query) {
  std::vector<Candidate> checkpoints;
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr || query.values.empty()) return checkpoints;
  const absl::StatusOr<v1::ListCheckpointsResponse> response = connection->ListCheckpoints(query.values[0]);
  if (!response.ok()) return checkpoints;
  for (const v1::Checkpoint& one : response->checkpoints()) {
    checkpoints.push_back({Clean(one.name()), one.best() ? "the best" : ""});
  }
  return checkpoints;
}

std::vector<Candidate> Contexts(const ValueQuery&) {
  std::vector<Candidate> contexts;
  const absl::StatusOr<ClientConfig> config = ReadContexts(ContextsPath());
  if (!config.ok()) return contexts;
  const std::map<std::string, ClientContext> sorted(config->contexts().begin(), config->contexts().end());
  for (const auto& [name, context] : sorted) contexts.push_back({Clean(name), Clean(context.server())});
  return contexts;
}

std::vector<Candidate> States(const ValueQuery&) {
  std::vector<Candidate> states;
  const auto* type = Job::State_descriptor();
  for (int i = 1; i < type->value_count(); ++i) states.push_back({absl::AsciiStrToLower(type->value(i)->name()), ""});
  return states;
}

std::vector<Candidate> Kinds(const ValueQuery&) {
  std::vector<Candidate> kinds;
  for (const Starter& starter : Starters()) kinds.push_back({starter.name, starter.summary});
  return kinds;
}

// Job files aside, what bench measures.
std::vector<Candidate> Files(const ValueQuery& query) {
  if (query.verb != "bench") return {};
  return {{"gemm", "products of matrices"}, {"conv", "convolutions"}};
}

// Of a list with commas the next one.
std::vector<Candidate> Modes(const ValueQuery& query) {
  const size_t comma = query.prefix.rfind(',');
  const std::string before = comma == std::string::npos ? "" : query.prefix.substr(0, comma + 1);
  const std::vector<std::string> named = absl::StrSplit(before, ',', absl::SkipEmpty());
  std::vector<Candidate> modes;
  for (const char* mode : {"fp32", "tf32", "fp16", "bf16", "fp8"}) {
    if (std::find(named.begin(), named.end(), mode) == named.end()) modes.push_back({absl::StrCat(before, mode), ""});
  }
  return modes;
}

std::vector<Candidate> Orders(const ValueQuery&) {
  return {{"create_time", ""}, {"priority", ""}, {"state", ""}, {"name", ""}, {"user", ""}};
}

std::vector<Candidate> Artifacts(const ValueQuery& query) {
  const std::unique_ptr<Connection> connection = Connect(query.globals);
  if (connection == nullptr || query.values.empty()) return {};
  const absl::StatusOr<Job> job = connection->GetJob(query.values[0]);
  if (!job.ok()) return {};
  const absl::StatusOr<std::vector<v1::JobEvent>> events =
      connection->ReadEvents(job->id(), job->last_sequence(), kPatience, 0);
  if (!events.ok()) return {};
  std::vector<Candidate> artifacts;
  for (const v1::JobEvent& event : *events) {
    if (event.has_artifact())
      artifacts.push_back({Clean(event.artifact().name()), Bytes(event.artifact().size_bytes())});
  }
  return artifacts;
}

// Fields of the job file: "train.", "train.batch_size=", and of an enum or a bool its values.
std::vector<Candidate> Fields(const ValueQuery& query) {
  std::vector<Candidate> fields;
  const size_t equals = query.prefix.find('=');
  const size_t dot = query.prefix.rfind('.', equals);
  const std::string folder = dot == std::string::npos ? "" : query.prefix.substr(0, dot + 1);
  const Descriptor* message = &JobSpecWithComments();
  for (const absl::string_view part : absl::StrSplit(folder, '.', absl::SkipEmpty())) {
    const FieldDescriptor* field = message->FindFieldByName(std::string(part.substr(0, part.find('['))));
    message = field == nullptr || field->is_map() ? nullptr : field->message_type();
    if (message == nullptr) return fields;
  }
  if (equals == std::string::npos) {
    for (int i = 0; i < message->field_count(); ++i) {
      const FieldDescriptor& field = *message->field(i);
      const bool inner = field.message_type() != nullptr && field.message_type()->file()->package() == "ampd.v1" &&
                         !field.is_repeated();
      fields.push_back({absl::StrCat(folder, field.name(),
                                     inner            ? "."
                                     : field.is_map() ? "."
                                                      : "="),
                        CommentOf(field)});
    }
    return fields;
  }
  const std::string name = query.prefix.substr(folder.size(), equals - folder.size());
  const FieldDescriptor* field = message->FindFieldByName(name);
  if (field == nullptr) return fields;
  const std::string before = query.prefix.substr(0, equals + 1);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) fields = {{before + "true", ""}, {before + "false", ""}};
  if (field->enum_type() == nullptr) return fields;
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    const auto& value = *field->enum_type()->value(i);
    if (value.number() != 0) fields.push_back({before + value.name(), CommentOf(value)});
  }
  return fields;
}

}  // namespace

std::vector<Candidate> FindValues(const ValueQuery& query) {
  using Source = std::vector<Candidate> (*)(const ValueQuery&);
  static const auto& sources = *new std::map<std::string, Source>{
      {"JOB", Jobs},           {"JOB1", Jobs},
      {"JOB2", Jobs},          {"FILE|JOB", Jobs},
      {"SWEEP", Sweeps},       {"DEVICE", Devices},
      {"MODEL", DeviceModels}, {"DATASET", Datasets},
      {"TOKEN", Tokens},       {"CHECKPOINT", Checkpoints},
      {"CONTEXT", Contexts},   {"STATE", States},
      {"KIND", Kinds},         {"PATH=VALUE", Fields},
      {"FILE", Files},         {"MODES", Modes},
      {"ORDER", Orders},       {"ARTIFACT", Artifacts},
  };
  const auto found = sources.find(query.kind);
  return found == sources.end() ? std::vector<Candidate>() : found->second(query);
}

}  // namespace ampd::client
