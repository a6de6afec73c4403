#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/exit_code.h"
#include "client/output/color.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

std::string Conditions(const v1::Device& device) {
  std::vector<std::string> kinds;
  for (const v1::DeviceCondition& condition : device.conditions()) {
    kinds.push_back(v1::DeviceCondition::Kind_Name(condition.kind()));
  }
  return kinds.empty() ? "ok" : absl::StrJoin(kinds, ",");
}

// Figures that are not known are "-".
void AddRow(const v1::Device& device, Table* table) {
  const v1::GpuStatus& gpu = device.gpu();
  table->Add({device.id(), v1::Device::Kind_Name(device.kind()), device.name(), absl::StrCat(device.threads()),
              device.has_memory_total_bytes() ? Bytes(device.memory_total_bytes()) : "-",
              device.has_memory_used_bytes() ? Bytes(device.memory_used_bytes()) : "-",
              device.has_utilization() ? absl::StrFormat("%.0f%%", 100 * device.utilization()) : "-",
              gpu.has_tensor_active() ? absl::StrFormat("%.0f%%", 100 * gpu.tensor_active()) : "-",
              gpu.has_power_watts() ? absl::StrFormat("%.0f W", gpu.power_watts()) : "-",
              gpu.has_temperature_celsius() ? absl::StrFormat("%.0f C", gpu.temperature_celsius()) : "-",
              device.job_id().empty() ? "-" : device.job_id(), Conditions(device)});
}

Color ColorOfConditions(const std::string& text) { return text == "ok" ? Color::kGreen : Color::kYellow; }

void PrintTable(const v1::ListDevicesResponse& response, const CommandContext& context) {
  constexpr size_t kNameColumn = 2, kConditionColumn = 11;
  std::ostream& out = *context.out;
  Table table({"ID", "KIND", "NAME", ">THREADS", ">MEMORY", ">USED", ">LOAD", ">TENSOR", ">POWER", ">TEMP", "JOB",
               "CONDITION"});
  if (context.color) table.Paint(kConditionColumn, ColorOfConditions);
  for (const v1::Device& device : response.devices()) AddRow(device, &table);
  out << FittedText(table, kNameColumn, context);
  for (const v1::Device& device : response.devices()) {
    for (const v1::DeviceCondition& condition : device.conditions()) {
      out << device.id() << ": " << v1::DeviceCondition::Kind_Name(condition.kind()) << ": "
          << Clean(condition.message()) << (condition.blocks_jobs() ? "; no job starts on it\n" : "\n");
    }
  }
  out << std::flush;
}

int RunDevices(const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListDevicesResponse> response = (*connection)->ListDevices();
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, context);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Device& device : response->devices()) PrintMessage(device, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddDevices(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("devices", "List what jobs can train on");
  verb->footer("Example:\n  ampctl devices -o json");
  verb->callback([context] { context->exit_code = RunDevices(*context); });
}

}  // namespace ampd::client
