#include "engine/train/onnx_file.h"

#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/models/imported_files.h"
#include "engine/models/onnx/import.h"
#include "engine/train/model_file.h"

namespace ampd::train {

absl::Status ReadOnnxFile(const ResolvedJobSpec& spec, const std::vector<std::string>& data_roots,
                          const std::string& upload_dir) {
  if (!spec.proto().model().has_onnx()) return absl::OkStatus();
  const std::string& path = spec.proto().model().onnx().path();
  AMPD_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadModelFile(path, data_roots, upload_dir, std::numeric_limits<int32_t>::max()));
  absl::StatusOr<models::onnx::Model> parsed = models::onnx::Model::Parse(bytes);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  models::ProvideOnnxFile(path, std::make_shared<const models::onnx::Model>(*std::move(parsed)));
  return absl::OkStatus();
}

absl::Status TakeOnnxWeights(const ResolvedJobSpec& spec, runtime::ModelMemory* memory) {
  if (!spec.proto().model().has_onnx()) return absl::OkStatus();
  const models::ImportedValues values = models::FindImportedValues(spec.proto().model().onnx().path());
  const auto take = [&](const ir::Persistent& tensor, const TensorView& to) -> absl::Status {
    const auto value = values.find(tensor.name);
    if (value == values.end()) return absl::OkStatus();
    const TensorView from = value->second->view();
    if (from.dtype == to.dtype && from.shape == to.shape) {
      return memory->memory()->Upload(from.data, from.bytes(), static_cast<char*>(to.data));
    }
    return absl::InternalError(absl::StrCat("[onnx] ", tensor.name, " is ", DTypeName(to.dtype), ShapeString(to.shape),
                                            ", the file's ", DTypeName(from.dtype), ShapeString(from.shape)));
  };
  const runtime::ModelLayout& layout = memory->layout();
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    AMPD_RETURN_IF_ERROR(take(layout.parameters()[i], memory->Master(static_cast<int32_t>(i))));
  }
  for (size_t i = 0; i < layout.states().size(); ++i) {
    AMPD_RETURN_IF_ERROR(take(layout.states()[i], memory->State(static_cast<int32_t>(i))));
  }
  return absl::OkStatus();
}

}  // namespace ampd::train
