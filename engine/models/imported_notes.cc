#include "engine/models/imported_notes.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/models/imported_files.h"
#include "proto/spec/names.h"

namespace ampd::models {
namespace {

constexpr size_t kMostNamed = 8;
// What is longer is no name that a person gave.
constexpr size_t kMostBytes = 80;

class List {
 public:
  void Add(const onnx::FloatInitializer& f) {
    if (++count_ > kMostNamed) return;
    const std::string& name = f.parameter ? f.tensor : f.name;
    absl::StrAppend(&names_, names_.empty() ? "" : ", ", absl::CHexEscape(name.substr(0, kMostBytes)));
    if (!f.number) absl::StrAppend(&names_, " ", ShapeString(f.shape));
  }

  // Of what there is none nothing is said.
  void Tell(const std::string& what, std::vector<std::string>* notes) const {
    if (count_ == 0) return;
    notes->push_back(absl::StrCat(what, ": ", names_));
    if (count_ > kMostNamed) absl::StrAppend(&notes->back(), " and ", count_ - kMostNamed, " more");
  }

 private:
  size_t count_ = 0;
  std::string names_;
};

bool IsFrozen(const v1::OnnxModel& onnx, const std::string& name) {
  return std::any_of(onnx.freeze().begin(), onnx.freeze().end(),
                     [&](const std::string& glob) { return GlobMatches(glob, name); });
}

std::vector<std::string> OutputsOf(const v1::OnnxModel& onnx, const onnx::Model& file) {
  std::vector<std::string> outputs(onnx.outputs().begin(), onnx.outputs().end());
  const std::vector<onnx::ModelValue> declared = file.outputs();
  if (outputs.empty() && !declared.empty()) outputs.push_back(declared[0].name);
  return outputs;
}

// Losses of logits leave out their own activation at the end (imported_graph.h), but not another's.
void TellOfTheEnd(const v1::LossSpec& loss, const std::string& operation, std::vector<std::string>* notes) {
  const bool softmax = operation == "Softmax" || operation == "LogSoftmax";
  const bool of_classes = loss.has_softmax_cross_entropy() || loss.has_ctc();
  const bool stays = (of_classes && operation == "Sigmoid") || (loss.has_sigmoid_cross_entropy() && softmax);
  if (!stays) return;
  notes->push_back(absl::StrCat("the output ends in ", operation,
                                ", which stays; the loss takes logits; name the value ",
                                "before it in model.onnx.outputs"));
}

void TellOfFrozenWeights(const onnx::Model& file, const std::vector<std::string>& outputs,
                         std::vector<std::string>* notes) {
  List frozen;
  for (const onnx::FloatInitializer& f : file.FrozenWeights(outputs)) frozen.Add(f);
  frozen.Tell(
      "tensors of the ONNX file that stand where weights do and are not trained, for they are no FLOAT initializers",
      notes);
}

}  // namespace

std::vector<std::string> DescribeGuesses(const v1::ModelSpec& model) {
  const v1::OnnxModel& onnx = model.onnx();
  const auto file = FindOnnxFile(onnx.path());
  if (file == nullptr) return {};
  const std::vector<std::string> outputs = OutputsOf(onnx, *file);
  List lifted, numbers, tables, constants;
  for (const onnx::FloatInitializer& f : file->FloatInitializers(outputs)) {
    if (!f.parameter) {
      constants.Add(f);
    } else if (!IsFrozen(onnx, f.tensor)) {
      if (f.constant_node) lifted.Add(f);
      if (f.number) numbers.Add(f);
      if (!f.number && !f.weight) tables.Add(f);
    }
  }
  std::vector<std::string> notes;
  lifted.Tell("weights in Constant nodes of the ONNX file that are trained (model.onnx.freeze holds them)", &notes);
  numbers.Tell("single numbers of the ONNX file that are trained (model.onnx.freeze holds them)", &notes);
  tables.Tell("tensors of the ONNX file that are trained and may be tables (model.onnx.freeze holds them)", &notes);
  constants.Tell("constants of the ONNX file, which are not trained", &notes);
  TellOfFrozenWeights(*file, outputs, &notes);
  if (!outputs.empty()) TellOfTheEnd(model.loss(), file->LastOperation(outputs[0]), &notes);
  return notes;
}

std::string DescribeFrozenWeights(const v1::OnnxModel& onnx) {
  const auto file = FindOnnxFile(onnx.path());
  std::vector<std::string> notes;
  if (file != nullptr) TellOfFrozenWeights(*file, OutputsOf(onnx, *file), &notes);
  return notes.empty() ? "" : notes[0];
}

}  // namespace ampd::models
