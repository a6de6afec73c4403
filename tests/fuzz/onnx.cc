// An ONNX model, imported for evaluation and as a network to train; and the same bytes as one tensor.
#include "engine/models/onnx/import.h"
#include "engine/ops/op_def.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

void Import(const models::onnx::Model& model, const models::onnx::ImportOptions& options) {
  const auto imported = model.Import(options);
  CheckError(imported.status());
  if (!imported.ok()) return;
  const absl::Status valid = ops::VerifyGraph(imported->graph);
  Check(valid.ok(), "a graph that is none: " + valid.ToString());
  Check(imported->parameter_values.size() == imported->graph.parameters.size(), "values of parameters");
  Check(imported->state_values.size() == imported->graph.states.size(), "values of states");
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  fuzz::CheckError(models::onnx::ParseTensor(bytes).status());
  // A file of 64 bytes of whatever name.
  const auto model = models::onnx::Model::Parse(bytes, [](const ExternalPart& part) -> absl::StatusOr<std::string> {
    const auto length = part.LengthWithin(64);
    if (!length.ok()) return length.status();
    fuzz::Check(*length >= 0 && part.offset >= 0 && *length + part.offset <= 64, "a part outside its file");
    return std::string(static_cast<size_t>(*length), '?');
  });
  fuzz::CheckError(model.status());
  if (!model.ok()) return 0;
  model->inputs();
  model->outputs();
  models::onnx::ImportOptions options;
  options.max_elements = 1e6;
  fuzz::Import(*model, options);
  const std::set<std::string> trainable = model->Trainable();
  options.training = true;
  options.is_parameter = [&](const std::string& name) { return trainable.count(name) > 0; };
  options.updates_statistic = [](const std::string&) { return true; };
  fuzz::Import(*model, options);
  return 0;
}
