#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/command.h"
#include "client/commands/create_job.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/local_files.h"
#include "client/output/bench_table.h"
#include "client/output/event_line.h"
#include "client/output/text.h"
#include "client/watch.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

struct BenchOptions {
  std::string file;
  std::vector<std::string> modes;
  std::vector<int64_t> batches;
  std::vector<int64_t> sizes;
  std::vector<int64_t> kernels;
  int64_t image = 0;
  int64_t steps = 0;
  int64_t warmup = -1;
  std::vector<std::string> sets;
  // Empty: as the program's own -o says.
  std::string output;
  std::string svg;
};

bool IsSweep(const BenchOptions& options) { return options.file == "gemm" || options.file == "conv"; }

absl::Status AddModes(const BenchOptions& options, v1::BenchSpec* bench) {
  std::vector<std::string> known;
  for (const v1::PrecisionSpec::Mode mode : {v1::PrecisionSpec::FP32, v1::PrecisionSpec::TF32, v1::PrecisionSpec::FP16,
                                             v1::PrecisionSpec::BF16, v1::PrecisionSpec::FP8}) {
    known.push_back(v1::PrecisionSpec::Mode_Name(mode));
  }
  for (const std::string& text : options.modes) {
    const std::string name = absl::AsciiStrToUpper(text);
    v1::PrecisionSpec::Mode mode;
    if (std::find(known.begin(), known.end(), name) == known.end() || !v1::PrecisionSpec::Mode_Parse(name, &mode)) {
      return absl::InvalidArgumentError(absl::StrCat("--modes: no such mode ", Quoted(text), DidYouMean(name, known)));
    }
    bench->add_modes(mode);
  }
  return absl::OkStatus();
}

// The options that fill fields of `bench`, for what is wrong with those.
void NoteOptions(const BenchOptions& options, JobFile* file) {
  const auto note = [file](const char* option, const auto& values, const char* field) {
    if (!values.empty()) file->NoteOption(absl::StrCat(option, " ", absl::StrJoin(values, ",")), field);
  };
  note("--modes", options.modes, "bench.modes");
  note("--batch", options.batches, "bench.batch_sizes");
  note("--sizes", options.sizes, "bench.sweep.sizes");
  note("--kernels", options.kernels, "bench.sweep.kernels");
  if (options.steps > 0) file->NoteOption(absl::StrCat("--steps ", options.steps), "bench.steps");
  if (options.warmup >= 0) file->NoteOption(absl::StrCat("--warmup ", options.warmup), "bench.warmup_steps");
  if (options.image > 0) file->NoteOption(absl::StrCat("--image ", options.image), "bench.sweep.image");
}

// What the command line asks for, in place of what the file says of the same.
absl::Status FillBench(const BenchOptions& options, v1::BenchSpec* bench) {
  if (!options.modes.empty()) bench->clear_modes();
  if (absl::Status status = AddModes(options, bench); !status.ok()) return status;
  if (!options.batches.empty()) bench->clear_batch_sizes();
  bench->mutable_batch_sizes()->Add(options.batches.begin(), options.batches.end());
  if (options.steps > 0) bench->set_steps(options.steps);
  if (options.warmup >= 0) bench->set_warmup_steps(options.warmup);
  const bool sweep = IsSweep(options);
  if (!sweep && (!options.sizes.empty() || !options.kernels.empty() || options.image > 0)) {
    return absl::InvalidArgumentError("--sizes, --kernels and --image are for gemm and conv");
  }
  if (!sweep) return absl::OkStatus();
  bench->mutable_sweep()->set_kind(options.file == "gemm" ? v1::Sweep::GEMM : v1::Sweep::CONV);
  bench->mutable_sweep()->mutable_sizes()->Add(options.sizes.begin(), options.sizes.end());
  bench->mutable_sweep()->mutable_kernels()->Add(options.kernels.begin(), options.kernels.end());
  if (options.image > 0) bench->mutable_sweep()->set_image(options.image);
  return absl::OkStatus();
}

absl::StatusOr<JobFile> ReadJob(const BenchOptions& options) {
  if (!IsSweep(options)) return JobFile::Read(options.file, options.sets);
  return JobFile::Parse(absl::StrCat("name: bench-", options.file, "\n"), "bench " + options.file, options.sets);
}

std::string OutputOf(const BenchOptions& options, const CommandContext& context) {
  if (!options.output.empty()) return absl::AsciiStrToLower(options.output);
  return context.format == Format::kTable ? "table" : "json";
}

// Everything but the results goes to context.err, so that those can be piped.
void Show(const v1::JobEvent& event, const CommandContext& context) {
  if (event.has_state_change() && IsTerminal(event.state_change().to())) return;
  *context.err << EventLine(event) << std::endl;
}

int WriteSvg(const std::string& path, const std::string& svg, const CommandContext& context) {
  std::ofstream file(path, std::ios::binary);
  file << svg;
  file.close();
  if (file.good()) return kExitSucceeded;
  *context.err << "ampctl: " << path << ": cannot be written" << std::endl;
  return kExitFailed;
}

int PrintResults(const BenchOptions& options, const std::string& name, const std::vector<v1::BenchCell>& cells,
                 const CommandContext& context) {
  const std::string output = OutputOf(options, context);
  *context.out << (output == "csv"    ? BenchCsv(cells)
                   : output == "json" ? BenchJson(cells)
                                      : BenchTable(cells))
               << std::flush;
  return options.svg.empty() ? kExitSucceeded : WriteSvg(options.svg, BenchSvg(name, cells), context);
}

int FollowBench(Connection* connection, const v1::Job& job, const BenchOptions& options, Interrupt* interrupt,
                const CommandContext& context) {
  BenchCells cells;
  const auto on_event = [&](const v1::JobEvent& event) {
    cells.Observe(event);
    Show(event, context);
  };
  const auto on_lost = [&](const absl::Status& status) {
    *context.err << "connection lost: " << Clean(status.message()) << "; reconnecting" << std::endl;
  };
  const absl::StatusOr<v1::StateChange> end = WatchToTheEnd(
      connection, {.job_id = job.id()}, interrupt, {.on_event = on_event, .on_lost = on_lost, .on_resumed = [] {}});
  if (!end.ok()) return interrupt->raised() ? Detach(job.id(), context) : Fail(context, end.status());
  const int printed = PrintResults(options, job.spec().name(), cells.cells(), context);
  if (end->has_failure()) *context.err << FailureText(end->failure()) << std::endl;
  const int code = ExitCodeOf(end->to());
  if (code != kExitSucceeded) return code;
  const auto& all = cells.cells();
  if (std::all_of(all.begin(), all.end(), [](const v1::BenchCell& cell) { return cell.has_failure(); })) {
    *context.err << "ampctl: nothing could be measured" << std::endl;
    return kExitFailed;
  }
  return printed;
}

int RunBench(const BenchOptions& options, const CommandContext& context) {
  absl::StatusOr<JobFile> file = ReadJob(options);
  if (!file.ok()) {
    *context.err << file.status().message() << std::endl;
    return kExitUsage;
  }
  v1::CreateJobRequest request;
  *request.mutable_spec() = file->spec();
  if (const absl::Status status = FillBench(options, request.mutable_spec()->mutable_bench()); !status.ok()) {
    return Fail(context, status);
  }
  NoteOptions(options, &*file);
  Interrupt interrupt;
  interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::Status sent = UploadLocalFiles(*file, connection->get(), &interrupt, context.err, request.mutable_spec());
  if (!sent.ok()) return Refused(*file, sent, context);
  request.set_request_id(NewRequestId());
  const absl::StatusOr<v1::Job> job = CreateJob(connection->get(), request, &interrupt);
  if (!job.ok()) return Refused(*file, job.status(), context);
  *context.err << "submitted " << job->id() << std::endl;
  return FollowBench(connection->get(), *job, options, &interrupt, context);
}

}  // namespace

void AddBench(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("bench", "Measure a job's steps, or single operations, in several precision modes");
  auto options = std::make_shared<BenchOptions>();
  verb->add_option("FILE", options->file, "Job file; or gemm or conv, products or convolutions of several sizes")
      ->required();
  verb->add_option("--modes", options->modes,
                   "Of fp32, tf32, fp16, bf16 and fp8, with commas between them; default: all that the device can do. "
                   "FP32 runs in any case")
      ->delimiter(',')
      ->type_name("MODES");
  verb->add_option("--batch", options->batches, "Batch sizes, e.g. 32,64,128; default: the job's")
      ->delimiter(',')
      ->type_name("SIZES");
  verb->add_option("--steps", options->steps, "Steps measured of each mode and size; default 30")
      ->check(CLI::Range(1, 100000));
  verb->add_option("--warmup", options->warmup, "Steps before them; default 5")->check(CLI::Range(0, 100000));
  verb->add_option("--sizes", options->sizes, "gemm: extents of the matrices; conv: channels")
      ->delimiter(',')
      ->type_name("SIZES");
  verb->add_option("--kernels", options->kernels, "conv: sides of the kernels")->delimiter(',')->type_name("SIZES");
  verb->add_option("--image", options->image, "conv: side of the images; default 32")->check(CLI::Range(1, 4096));
  verb->add_option("--set", options->sets, "Change a field of the file; may be given again")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  verb->add_option("-o,--output", options->output, "table (default), csv or json")
      ->check(CLI::IsMember({"table", "csv", "json"}, CLI::ignore_case))
      ->type_name("FORMAT");
  verb->add_option("--svg", options->svg, "Write a plot of step time and speed-up to this file")->type_name("PATH");
  verb->footer(std::string(kLocalFilesHelp) +
               "\nExits 1 where nothing could be measured.\nExample:\n  ampctl bench job.yaml --modes fp32,bf16 "
               "--batch 32,64,128 --svg bench.svg\n"
               "  ampctl bench gemm --sizes 512,1024,2048 --modes bf16 -o csv");
  verb->callback([options, context] { context->exit_code = RunBench(*options, *context); });
}

}  // namespace ampd::client
