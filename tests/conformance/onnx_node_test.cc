// onnx_node_test [--exported] DIR [NAME...]: runs ONNX's backend tests, DIR/test_*/{model.onnx,
// test_data_set_N/{input,output}_M.pb}, on the CPU backend. A line a case, and last "N passed, N failed, N skipped".
// Exit code 1 when one failed, 77 when DIR is not there. A case is skipped when the importer says UNIMPLEMENTED: an
// operation, element type or spatial rank that the engine does not claim; everything else that goes wrong is a failure.
// With --exported what runs is the imported graph written as a model and read again; cases that the exporter refuses as
// FAILED_PRECONDITION are skipped, too.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/status.h"
#include "engine/models/onnx/export.h"
#include "engine/models/onnx/import.h"
#include "tests/conformance/graph_runner.h"
#include "tests/support/ref_tensor.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using TensorPtr = std::shared_ptr<const Tensor>;

// ONNX's own runner's.
constexpr double kRelative = 1e-3;
constexpr double kAbsolute = 1e-7;
// 16-bit results are rounded at every operation, in an order that ONNX leaves open: what a dozen roundings of the
// largest value may add up to is allowed too.
constexpr double kRoundings = 12;

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

absl::StatusOr<std::vector<TensorPtr>> ReadTensors(const fs::path& folder, const std::string& kind) {
  std::vector<TensorPtr> tensors;
  for (int i = 0;; ++i) {
    const fs::path path = folder / absl::StrCat(kind, "_", i, ".pb");
    if (!fs::exists(path)) return tensors;
    AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
    absl::StatusOr<models::onnx::NamedTensor> tensor = models::onnx::ParseTensor(bytes);
    if (!tensor.ok()) return Annotate(tensor.status(), path.filename().string());
    tensors.push_back(tensor->tensor);
  }
}

absl::Status Compare(const std::string& name, const TensorView& got, const Tensor& expected) {
  if (got.dtype != expected.dtype() || got.shape != expected.shape()) {
    return absl::InternalError(absl::StrCat(name, " is ", DTypeName(got.dtype), ShapeString(got.shape), ", expected ",
                                            DTypeName(expected.dtype()), ShapeString(expected.shape())));
  }
  const std::vector<double> a = testing::FromTensor(got).data, b = testing::FromTensor(expected.view()).data;
  double largest = 0;
  for (double v : b) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0);
  const double roundings = IsHalf(got.dtype) ? kRoundings * UnitRoundoff(got.dtype) * largest : 0;
  size_t wrong = 0, first = 0;
  for (size_t i = a.size(); i-- > 0;) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    const double bound = kAbsolute + roundings + kRelative * std::abs(b[i]);
    const bool close = std::isfinite(b[i]) && IsFloat(got.dtype) && !IsF8(got.dtype) && std::abs(a[i] - b[i]) <= bound;
    if (!same && !close) ++wrong, first = i;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name, ": ", wrong, " of ", a.size(), " elements differ, first ", first, ": ",
                                          a[first], ", expected ", b[first]));
}

// An import that fails as unimplemented is what a case may be skipped for.
struct Outcome {
  absl::Status status;
  bool skipped = false;
};

// The graph as a model, read again.
absl::StatusOr<models::onnx::ImportedModel> WrittenAndRead(const models::onnx::Model& model, const ir::Graph& graph,
                                                           const models::onnx::ImportOptions& import) {
  models::onnx::ExportOptions options;
  for (const models::onnx::ModelValue& input : model.inputs()) {
    if (graph.FindInput(input.name) >= 0) options.inputs.push_back({input.name, input.name, {}});
  }
  for (const auto& [name, value] : graph.outputs) options.outputs.push_back({name, name, {}});
  AMPD_ASSIGN_OR_RETURN(const std::string bytes, models::onnx::ExportGraph(graph, graph, options));
  AMPD_ASSIGN_OR_RETURN(const models::onnx::Model written, models::onnx::Model::Parse(bytes));
  return written.Import(import);
}

Outcome RunDataSet(const models::onnx::Model& model, const fs::path& folder, bool exported) {
  const auto refused = [](const absl::Status& status) {
    return Outcome{status, status.code() == absl::StatusCode::kUnimplemented};
  };
  for (const auto& values : {model.inputs(), model.outputs()}) {
    for (const models::onnx::ModelValue& value : values) {
      if (value.element_type == "SEQUENCE" || value.element_type == "OPTIONAL" || value.element_type == "MAP") {
        return refused(absl::UnimplementedError(absl::StrCat(value.name, " is of the type ", value.element_type)));
      }
    }
  }
  absl::StatusOr<std::vector<TensorPtr>> inputs = ReadTensors(folder, "input");
  if (!inputs.ok()) return refused(inputs.status());
  absl::StatusOr<std::vector<TensorPtr>> outputs = ReadTensors(folder, "output");
  if (!outputs.ok()) return refused(outputs.status());
  const std::vector<models::onnx::ModelValue> declared = model.inputs();
  if (inputs->size() > declared.size()) return {absl::InternalError("more inputs than the model has")};
  models::onnx::ImportOptions options;
  options.max_elements = 1e8;
  for (size_t i = 0; i < inputs->size(); ++i) {
    options.input_shapes[declared[i].name] = (*inputs)[i]->shape();
    options.input_values[declared[i].name] = (*inputs)[i];
  }
  absl::StatusOr<models::onnx::ImportedModel> imported = model.Import(options);
  if (!imported.ok()) return refused(imported.status());
  if (exported) imported = WrittenAndRead(model, imported->graph, options);
  if (!imported.ok()) return {imported.status(), absl::IsFailedPrecondition(imported.status())};
  absl::StatusOr<std::map<std::string, Tensor>> results = testing::RunImported(*imported, options.input_values, 2);
  if (!results.ok()) return {results.status()};
  const std::vector<models::onnx::ModelValue> results_declared = model.outputs();
  if (outputs->size() != results_declared.size()) return {absl::InternalError("outputs are missing in the data set")};
  for (size_t i = 0; i < outputs->size(); ++i) {
    const std::string& name = results_declared[i].name;
    absl::Status status = Compare(name, results->at(name).view(), *(*outputs)[i]);
    if (!status.ok()) return {status};
  }
  return {absl::OkStatus()};
}

Outcome RunCase(const fs::path& folder, bool exported) {
  absl::StatusOr<std::string> bytes = ReadFile(folder / "model.onnx");
  if (!bytes.ok()) return {bytes.status()};
  absl::StatusOr<models::onnx::Model> model = models::onnx::Model::Parse(*bytes);
  if (!model.ok()) return {model.status()};
  int data_sets = 0;
  for (; fs::exists(folder / absl::StrCat("test_data_set_", data_sets)); ++data_sets) {
    Outcome outcome = RunDataSet(*model, folder / absl::StrCat("test_data_set_", data_sets), exported);
    if (!outcome.status.ok()) return outcome;
  }
  if (data_sets == 0) return {absl::NotFoundError("has no data set")};
  return {absl::OkStatus()};
}

int Main(int argc, char** argv) {
  const bool exported = argc > 1 && std::string(argv[1]) == "--exported";
  if (exported) {
    --argc;
    ++argv;
  }
  if (argc < 2) {
    std::cerr << "usage: onnx_node_test [--exported] DIR [NAME...]\n";
    return 2;
  }
  if (!fs::is_directory(argv[1])) {
    std::cout << "skipped: " << argv[1] << " is not there\n";
    return 77;
  }
  const std::vector<std::string> names(argv + 2, argv + argc);
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(argv[1])) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "test_") || !fs::exists(entry.path() / "model.onnx")) continue;
    if (names.empty() || std::find(names.begin(), names.end(), name) != names.end()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  int passed = 0, failed = 0, skipped = 0;
  for (const fs::path& folder : folders) {
    const Outcome outcome = RunCase(folder, exported);
    const char* word = outcome.status.ok() ? "passed " : outcome.skipped ? "skipped " : "failed ";
    (outcome.status.ok() ? passed : outcome.skipped ? skipped : failed) += 1;
    std::cout << word << folder.filename().string();
    if (!outcome.status.ok()) std::cout << ": " << outcome.status.message();
    std::cout << std::endl;
  }
  std::cout << passed << " passed, " << failed << " failed, " << skipped << " skipped" << std::endl;
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) { return ampd::Main(argc, argv); }
