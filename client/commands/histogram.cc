#include "client/analysis/histogram.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

struct HistogramOptions {
  std::string job;
  std::string tensor;
  std::string phase;
  std::string svg;
};

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--svg ", path, ": ", strerror(errno)));
}

int RunHistogram(const HistogramOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<JobAndEvents> found = FetchJob(connection->get(), options.job);
  if (!found.ok()) return Fail(context, found.status());
  const absl::StatusOr<Histogram> histogram = HistogramOf(found->events, options.phase, options.tensor);
  if (!histogram.ok()) return Fail(context, histogram.status());
  *context.out << (context.format == Format::kTable ? HistogramText(*histogram)
                                                    : HistogramJson(found->job.id(), *histogram))
               << std::flush;
  if (options.svg.empty()) return kExitSucceeded;
  const std::string title = absl::StrCat(found->job.spec().name(), ", step ", histogram->step, ": ",
                                         options.tensor.empty() ? "all gradients" : options.tensor);
  const absl::Status written = WriteFile(options.svg, HistogramSvg(*histogram, title));
  return written.ok() ? kExitSucceeded : Fail(context, written);
}

}  // namespace

void AddHistogram(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("histogram", "Which of a job's gradients fp16 holds, before and after loss scaling");
  auto options = std::make_shared<HistogramOptions>();
  verb->add_option("JOB", options->job, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("--tensor", options->tensor, "Only tensors that this matches ('*', '?')")->type_name("GLOB");
  verb->add_option("--phase", options->phase, "Of a job with several phases; default: the newest event's")
      ->type_name("PHASE");
  verb->add_option("--svg", options->svg, "Also draw it to this file")->type_name("FILE");
  verb->footer(
      "The job's file needs report: {diagnostics_every_steps: N}.\nExample:\n"
      "  ampctl histogram 01hq3v7m --tensor 'conv*' --svg gradients.svg");
  verb->callback([options, context] { context->exit_code = RunHistogram(*options, *context); });
}

}  // namespace ampd::client
