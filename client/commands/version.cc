#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/text.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

void PrintTable(const absl::StatusOr<v1::ServerInfo>& server, const CommandContext& context) {
  std::ostream& out = *context.out;
  out << "ampctl " AMPD_VERSION "\n";
  if (server.ok()) {
    out << "ampd " << Clean(server->version()) << " at " << context.server.address << ", since "
        << DateAndTime(server->start_time()) << " " << ZoneOf(server->start_time()) << ", speaks "
        << Clean(absl::StrJoin(server->apis(), ", ")) << (server->draining() ? ", draining" : "") << "\n";
    if (server->default_precision_mode() != v1::PrecisionSpec::MODE_UNSPECIFIED) {
      out << "jobs that name no precision mode train in "
          << v1::PrecisionSpec::Mode_Name(server->default_precision_mode()) << "\n";
    }
  }
}

void PrintJson(const absl::StatusOr<v1::ServerInfo>& server, std::ostream& out) {
  out << "{\"client\":{\"version\":\"" AMPD_VERSION "\"},\"server\":"
      << (server.ok() ? ToJson(*server, JsonStyle::kCompact) : "null") << "}\n";
}

void PrintYaml(const absl::StatusOr<v1::ServerInfo>& server, std::ostream& out) {
  out << "client: {version: \"" AMPD_VERSION "\"}\n";
  // JSON is YAML.
  if (server.ok()) out << "server: " << ToJson(*server, JsonStyle::kCompact) << "\n";
}

int RunVersion(const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ServerInfo> server = (*connection)->GetServerInfo(absl::Seconds(5));
  if (context.format == Format::kTable) {
    PrintTable(server, context);
  } else if (context.format == Format::kYaml) {
    PrintYaml(server, *context.out);
  } else {
    PrintJson(server, *context.out);
  }
  context.out->flush();
  return server.ok() ? kExitSucceeded : Fail(context, server.status());
}

}  // namespace

void AddVersion(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("version", "Show the versions of ampctl and of ampd, which must answer");
  verb->footer("Example:\n  ampctl version --server trainer:7070");
  verb->callback([context] { context->exit_code = RunVersion(*context); });
}

}  // namespace ampd::client
