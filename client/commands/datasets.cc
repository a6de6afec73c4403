#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/fitted.h"
#include "client/dataset_upload.h"
#include "client/exit_code.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

void PrintDataset(const v1::Dataset& dataset, const CommandContext& context) {
  if (context.format != Format::kTable) return PrintMessage(dataset, context.format, *context.out);
  *context.out << "dataset:" << Clean(dataset.name()) << " " << Bytes(dataset.size_bytes()) << std::endl;
}

int RunUpload(const DatasetUploadOptions& options, const CommandContext& context) {
  Interrupt interrupt;
  interrupt.CatchSignals();
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Dataset> dataset = UploadDataset(options, connection->get(), &interrupt, context.err);
  if (dataset.ok()) {
    PrintDataset(*dataset, context);
    return kExitSucceeded;
  }
  if (!interrupt.raised()) return Fail(context, dataset.status());
  *context.err << "interrupted; what came is kept, and the same command goes on from there" << std::endl;
  return kExitInterrupted;
}

void PrintTable(const v1::ListDatasetsResponse& response, const CommandContext& context) {
  constexpr size_t kState = 4;
  Table table({"DATASET", ">SIZE", "CREATED", "USER", "STATE"});
  for (const v1::Dataset& dataset : response.datasets()) {
    const bool is_damaged = !dataset.damage().empty();
    table.Add({Clean(dataset.name()), Bytes(dataset.size_bytes()),
               is_damaged ? "-" : DateAndTime(dataset.create_time()),
               dataset.user().empty() ? "-" : Clean(dataset.user()),
               is_damaged            ? absl::StrCat("damaged: ", Clean(dataset.damage()))
               : dataset.committed() ? "whole"
                                     : "unfinished"});
  }
  *context.out << FittedText(table, kState, context) << std::flush;
}

void PrintFiles(const v1::Dataset& dataset, std::ostream& out) {
  Table table({"FILE", ">SIZE", ">RECEIVED", "SHA-256"});
  for (const v1::DatasetFile& file : dataset.files()) {
    table.Add({Clean(file.path()), Bytes(file.size_bytes()), Bytes(file.received_bytes()), Clean(file.sha256())});
  }
  out << table.ToString() << std::flush;
}

int RunList(const std::string& name, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListDatasetsResponse> response = (*connection)->ListDatasets(name);
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, context);
    if (!name.empty() && response->datasets_size() == 1) PrintFiles(response->datasets(0), *context.out);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Dataset& dataset : response->datasets()) PrintMessage(dataset, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

int RunDelete(const std::string& name, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::Status status = (*connection)->DeleteDataset(name);
  if (!status.ok()) return Fail(context, status);
  if (context.format == Format::kTable) *context.out << Clean(name) << " deleted" << std::endl;
  return kExitSucceeded;
}

void AddUpload(CLI::App* datasets, CommandContext* context) {
  CLI::App* verb = datasets->add_subcommand("upload", "Send a file or a folder, for jobs to name dataset:NAME/PATH");
  auto options = std::make_shared<DatasetUploadOptions>();
  verb->add_option("NAME", options->name, "Letters, digits, '_', '-' and '.'")->required();
  verb->add_option("PATH", options->path, "File, or folder with all that is beneath it, of this machine")->required();
  verb->footer(
      "Files that the server has are not sent again: an upload that broke, or was interrupted, goes on where it "
      "stopped.\nExample:\n  ampctl datasets upload fashion ./fashion-mnist\n  ampctl submit job.yaml --set "
      "data.train.idx.images=dataset:fashion/images.gz");
  verb->callback([options, context] { context->exit_code = RunUpload(*options, *context); });
}

}  // namespace

void AddDatasets(CLI::App* app, CommandContext* context) {
  CLI::App* datasets = app->add_subcommand("datasets", "Send, list and delete the datasets that the server keeps");
  datasets->require_subcommand(1);
  AddUpload(datasets, context);
  auto name = std::make_shared<std::string>();
  datasets->footer("Example:\n  ampctl datasets upload fashion ./fashion-mnist");
  CLI::App* list = datasets->add_subcommand("list", "List the datasets, or the files of one");
  list->add_option("DATASET", *name, "Only this one, with its files");
  list->footer("Example:\n  ampctl datasets list fashion");
  list->callback([name, context] { context->exit_code = RunList(*name, *context); });
  auto deleted = std::make_shared<std::string>();
  CLI::App* remove = datasets->add_subcommand("delete", "Delete a dataset that no job which has not ended names");
  remove->add_option("DATASET", *deleted, "Whole or unfinished")->required();
  remove->footer("Example:\n  ampctl datasets delete fashion");
  remove->callback([deleted, context] { context->exit_code = RunDelete(*deleted, *context); });
}

}  // namespace ampd::client
