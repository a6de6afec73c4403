#include "proto/spec/resolve_onnx.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

constexpr size_t kMaxPathBytes = 4096;
// Exporters name values after the modules that they lie in.
constexpr size_t kMaxNameBytes = 1000;
constexpr size_t kMaxPatternBytes = 100;
constexpr int kMaxFrozen = 100;
constexpr char kUpload[] = "upload:";
constexpr size_t kChecksumDigits = 64;

void CheckPath(const std::string& path, Violations* violations) {
  violations->CheckText("model.onnx.path", path, kMaxPathBytes);
  if (!absl::StartsWith(path, kUpload)) return;
  const std::string checksum = path.substr(sizeof(kUpload) - 1);
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (checksum.size() == kChecksumDigits && std::all_of(checksum.begin(), checksum.end(), hex)) return;
  violations->Add("model.onnx.path", absl::StrCat("an upload is named by its SHA-256, ", kChecksumDigits,
                                                  " lower-case hex digits, is ", Quoted(path)));
}

}  // namespace

// What is in the file is not known here: names are tried on it once it is read.
void ResolveOnnx(v1::ModelSpec* model, Violations* violations) {
  v1::OnnxModel* onnx = model->mutable_onnx();
  if (!onnx->has_weights()) onnx->set_weights(true);
  if (!onnx->has_channels_first()) onnx->set_channels_first(true);
  if (!model->layers().empty()) violations->Add("model.layers", "cannot be given with onnx");
  if (!model->noise().empty()) violations->Add("model.noise", "goes with networks");
  CheckPath(onnx->path(), violations);
  if (onnx->outputs_size() > 1) {
    violations->Add("model.onnx.outputs",
                    absl::StrCat("more than one is not supported yet: the loss reads one, are ", onnx->outputs_size()));
  } else if (onnx->outputs_size() == 1) {
    violations->CheckText("model.onnx.outputs[0]", onnx->outputs(0), kMaxNameBytes);
  }
  if (!onnx->input().empty()) violations->CheckText("model.onnx.input", onnx->input(), kMaxNameBytes);
  if (onnx->freeze_size() > kMaxFrozen) {
    violations->Add("model.onnx.freeze", absl::StrCat("must be at most ", kMaxFrozen, ", are ", onnx->freeze_size()));
    return;
  }
  for (int i = 0; i < onnx->freeze_size(); ++i) {
    violations->CheckText(Indexed("model.onnx.freeze", i), onnx->freeze(i), kMaxPatternBytes);
  }
  if (!onnx->weights() && onnx->freeze_size() > 0) {
    violations->Add("model.onnx.freeze", "keeps the file's weights, which weights: false does not take");
  }
}

}  // namespace ampd
