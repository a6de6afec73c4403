#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "client/checkpoint_download.h"
#include "client/checkpoint_writer.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/file_download.h"
#include "client/retry.h"

namespace ampd::client {
namespace {

using Export = v1::ExportModelRequest;

struct DownloadOptions {
  std::string job_id;
  std::string path;
  std::string checkpoint;
  // Of the one file to write in place of a checkpoint's folder.
  bool one_file = false;
  Export::Form form = Export::SAFETENSORS;
  Export::Dtype dtype = Export::FLOAT32;
  bool ema = false;
  std::string network;
};

// Where the one file goes.
std::string FilePath(const DownloadOptions& options) {
  const std::string stem = options.network.empty() ? "model" : options.network;
  const std::string name = stem + (options.form == Export::ONNX ? ".onnx" : ".safetensors");
  std::error_code error;
  const bool folder = std::filesystem::is_directory(options.path, error);
  return folder ? (std::filesystem::path(options.path) / name).string() : options.path;
}

// The form that the name of a file to be says: NAME.onnx, NAME.safetensors.
absl::optional<Export::Form> FormOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return absl::nullopt;
  if (absl::EndsWithIgnoreCase(path, ".onnx")) return Export::ONNX;
  if (absl::EndsWithIgnoreCase(path, ".safetensors")) return Export::SAFETENSORS;
  return absl::nullopt;
}

absl::Status ExportOnce(Connection* connection, const DownloadOptions& options, const CommandContext& context) {
  const std::string path = FilePath(options);
  absl::StatusOr<std::unique_ptr<FileDownload>> file = FileDownload::Create(path);
  if (!file.ok()) return file.status();
  Export request;
  request.set_job_id(options.job_id);
  request.set_checkpoint(options.checkpoint);
  request.set_form(options.form);
  request.set_dtype(options.dtype);
  request.set_ema(options.ema);
  request.set_network(options.network);
  std::string checkpoint;
  absl::Status status = connection->ExportModel(request, [&](const v1::FileChunk& chunk) {
    checkpoint = chunk.checkpoint();
    return (*file)->Add(chunk);
  });
  if (status.ok()) status = (*file)->Commit();
  if (!status.ok()) return status;
  PrintFetched({.kind = "checkpoint", .name = checkpoint, .path = path, .bytes = (*file)->bytes()}, context);
  return absl::OkStatus();
}

// Calls `fetch` until it gives no transient error, a few times at most.
absl::Status WithRetries(const std::function<absl::Status()>& fetch) {
  constexpr int kAttempts = 5;
  Backoff backoff(absl::Milliseconds(200), absl::Seconds(2));
  Interrupt never;
  absl::Status status = fetch();
  for (int attempt = 1; attempt < kAttempts && IsTransient(status); ++attempt) {
    never.SleepFor(backoff.Next());
    status = fetch();
  }
  return status;
}

// `resumed`: whether what `writer` has came in several parts.
absl::Status FetchInto(Connection* connection, const DownloadOptions& options,
                       std::unique_ptr<CheckpointWriter>* writer, bool* resumed) {
  v1::DownloadCheckpointRequest request;
  request.set_job_id(options.job_id);
  request.set_checkpoint(options.checkpoint);
  if (*writer != nullptr && !(*writer)->checkpoint().empty()) {
    *resumed = true;
    const absl::Status status = ResumeCheckpoint(connection, request, writer->get());
    // What cannot be resumed, because the checkpoint is gone for example, is begun anew.
    if (status.ok() || IsTransient(status)) return status;
  }
  *resumed = false;
  writer->reset();
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> fresh = CheckpointWriter::Create(options.path);
  if (!fresh.ok()) return fresh.status();
  *writer = *std::move(fresh);
  return FetchCheckpoint(connection, request, writer->get());
}

absl::Status DownloadCheckpoint(Connection* connection, const DownloadOptions& options, const CommandContext& context) {
  std::unique_ptr<CheckpointWriter> writer;
  bool resumed = false;
  const auto fetch = [&] {
    const absl::Status fetched = WithRetries([&] { return FetchInto(connection, options, &writer, &resumed); });
    return fetched.ok() ? writer->Commit() : fetched;
  };
  absl::Status status = fetch();
  if (absl::IsDataLoss(status) && resumed) {
    // Another checkpoint took the name while the connection was away: parts of both fit no MANIFEST.
    writer.reset();
    status = fetch();
  }
  if (!status.ok()) return status;
  PrintFetched({.kind = "checkpoint",
                .name = writer->checkpoint(),
                .path = options.path,
                .files = writer->files(),
                .bytes = writer->bytes()},
               context);
  if (writer->from_mirror()) {
    *context.err << "the server's own files of it are damaged or gone; these are of the copy in its mirror"
                 << std::endl;
  }
  return absl::OkStatus();
}

int RunDownload(const DownloadOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::Status status = options.one_file
                                  ? WithRetries([&] { return ExportOnce(connection->get(), options, context); })
                                  : DownloadCheckpoint(connection->get(), options, context);
  return status.ok() ? kExitSucceeded : Fail(context, status);
}

}  // namespace

void AddDownload(CLI::App* app, CommandContext* context) {
  static const std::map<std::string, Export::Form> kForms = {{"safetensors", Export::SAFETENSORS},
                                                             {"onnx", Export::ONNX}};
  static const std::map<std::string, Export::Dtype> kDtypes = {
      {"fp32", Export::FLOAT32}, {"fp16", Export::FLOAT16}, {"bf16", Export::BFLOAT16}};
  CLI::App* verb = app->add_subcommand("download", "Fetch a checkpoint into a new folder, or its model as one file");
  auto options = std::make_shared<DownloadOptions>();
  verb->add_option("JOB", options->job_id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("PATH", options->path,
                   "Folder to make; it must not exist yet, or be empty. With --form, --dtype, --network or --ema, or "
                   "named NAME.onnx or NAME.safetensors, the new file; with one of these options also a folder for it")
      ->required();
  verb->add_option("--checkpoint", options->checkpoint,
                   "Name as `ampctl checkpoints` lists it, or best: the one that checkpoint.keep_best keeps; default: "
                   "the newest")
      ->type_name("CHECKPOINT");
  CLI::Option* form =
      verb->add_option_function<std::string>(
              "--form", [options](const std::string& name) { options->form = kForms.at(CLI::detail::to_lower(name)); },
              "The model alone: safetensors (PyTorch's names) or onnx; default: as PATH ends, else safetensors")
          ->check(CLI::IsMember({"safetensors", "onnx"}, CLI::ignore_case))
          ->type_name("FORM");
  CLI::Option* dtype =
      verb->add_option_function<std::string>(
              "--dtype",
              [options](const std::string& name) { options->dtype = kDtypes.at(CLI::detail::to_lower(name)); },
              "The model alone, its weights as fp32, fp16 or bf16; onnx is fp32")
          ->check(CLI::IsMember({"fp32", "fp16", "bf16"}, CLI::ignore_case))
          ->type_name("DTYPE");
  CLI::Option* network =
      verb->add_option(
              "--network", options->network,
              "The model alone: this one of several networks, as onnx with what it reads of others; or PHASE.CALL, a "
              "network as that call")
          ->type_name("NETWORK");
  CLI::Option* ema = verb->add_flag("--ema", options->ema, "The model alone, with the running average of its weights");
  verb->footer(
      "Nothing is overwritten, and all of it arrives or nothing does. A checkpoint goes on where a connection broke.\n"
      "Example:\n  ampctl download 01hq3v7m ./glyphs && ls glyphs/model.safetensors\n"
      "  ampctl download 01hq3v7m glyphs.onnx\n"
      "  ampctl download 01hq3v7m glyphs.safetensors --dtype bf16 --ema\n"
      "  ampctl download 01hq3v7m generator.onnx --form onnx --network generator");
  verb->callback([options, context, form, dtype, network, ema] {
    options->one_file = form->count() + dtype->count() + network->count() + ema->count() > 0;
    if (const absl::optional<Export::Form> named = FormOf(options->path); named && form->count() == 0) {
      options->form = *named;
      options->one_file = true;
    }
    context->exit_code = RunDownload(*options, *context);
  });
}

}  // namespace ampd::client
