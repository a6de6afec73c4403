#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/commands/create_job.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/local_files.h"
#include "client/output/plan_text.h"
#include "client/output/text.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"

namespace ampd::client {
namespace {

struct PlanOptions {
  std::string file;
  std::vector<std::string> sets;
  std::string gpu;
  std::vector<std::string> modes;
};

absl::Status AddModes(const std::vector<std::string>& names, v1::PlanJobRequest* request) {
  for (const std::string& name : names) {
    v1::PrecisionSpec::Mode mode;
    if (!v1::PrecisionSpec::Mode_Parse(absl::AsciiStrToUpper(name), &mode) ||
        mode == v1::PrecisionSpec::MODE_UNSPECIFIED || mode == v1::PrecisionSpec::AUTO) {
      return absl::InvalidArgumentError(
          absl::StrCat("--modes: no such mode ", Quoted(name), " (of FP32, TF32, FP16, BF16, FP8)"));
    }
    request->add_modes(mode);
  }
  return absl::OkStatus();
}

// Of a kind that the server does not know: those whose names begin so.
std::string DidYouMeanModel(Connection* connection, const std::string& given) {
  const absl::StatusOr<v1::ServerInfo> server = connection->GetServerInfo();
  if (!server.ok()) return "";
  std::vector<std::string> names, longer;
  for (const v1::DeviceModel& model : server->device_models()) {
    names.push_back(model.name());
    if (absl::StartsWithIgnoreCase(model.name(), given)) longer.push_back(model.name());
  }
  if (longer.empty()) return DidYouMean(given, names);
  const std::string last = longer.back();
  longer.pop_back();
  return absl::StrCat("; did you mean ", absl::StrJoin(longer, ", "), longer.empty() ? "" : " or ", last, "?");
}

// The kind of device is no field of the file.
int RefusedPlan(const JobFile& file, const absl::Status& status, const PlanOptions& options, Connection* connection,
                const CommandContext& context) {
  const std::vector<FieldViolation> violations = FieldViolationsOf(status);
  if (violations.size() != 1 || violations[0].field != "device_model" || options.gpu.empty()) {
    return Refused(file, status, context);
  }
  *context.err << "--gpu " << Clean(options.gpu) << ": " << Clean(violations[0].description)
               << DidYouMeanModel(connection, options.gpu) << std::endl;
  return kExitUsage;
}

int RunPlan(const PlanOptions& options, const CommandContext& context) {
  absl::StatusOr<JobFile> file = JobFile::Read(options.file, options.sets);
  if (!file.ok()) {
    // Each line names its place already.
    *context.err << file.status().message() << std::endl;
    return kExitUsage;
  }
  v1::PlanJobRequest request;
  *request.mutable_spec() = file->spec();
  request.set_device_model(options.gpu);
  if (const absl::Status modes = AddModes(options.modes, &request); !modes.ok()) return Fail(context, modes);
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  Interrupt interrupt;
  const absl::Status sent = UploadLocalFiles(*file, connection->get(), &interrupt, context.err, request.mutable_spec());
  if (!sent.ok()) return Refused(*file, sent, context);
  const absl::StatusOr<v1::PlanReport> report = (*connection)->PlanJob(request);
  if (!report.ok()) return RefusedPlan(*file, report.status(), options, connection->get(), context);
  Warn(*file, report->plan().warnings(), context);
  if (context.format == Format::kTable) {
    *context.out << PlanReportText(*report) << std::flush;
  } else {
    PrintMessage(*report, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddPlan(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("plan", "What a job would take and bring on a device, layer by layer, mode by mode");
  auto options = std::make_shared<PlanOptions>();
  verb->add_option("FILE", options->file, "Job file; - is standard input")->required();
  verb->add_option("--set", options->sets, "Change a field of the file; null clears it. May be given again")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  verb->add_option("--gpu", options->gpu,
                   "Kind of device: V100-SXM2, P100, T4, A100-SXM-40GB, A100-SXM-80GB, L4, H100-SXM, H200, B200, CPU, "
                   "... (ampctl version -o json lists all). Default: this server's first that can run the job")
      ->type_name("MODEL");
  verb->add_option("--modes", options->modes, "Modes to compare with FP32, e.g. fp16,bf16; default: all")
      ->delimiter(',')
      ->type_name("MODES");
  verb->footer(std::string(kLocalFilesHelp) +
               "\nExample:\n  ampctl plan job.yaml --gpu A100-SXM-40GB --modes fp16,bf16");
  verb->callback([options, context] { context->exit_code = RunPlan(*options, *context); });
}

}  // namespace ampd::client
