#include "engine/train/onnx_file.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/data/path.h"
#include "engine/models/imported_files.h"
#include "engine/models/onnx/import.h"
#include "engine/train/failure.h"
#include "engine/train/finite_tensors.h"
#include "engine/train/model_file.h"
#include "engine/train/sha256.h"

namespace ampd::train {

namespace {

// Beside the files themselves, which engine/models keeps by path too.
struct Checksums {
  Mutex mutex;
  std::map<std::string, std::string> by_path ABSL_GUARDED_BY(mutex);
};

Checksums& TheChecksums() {
  static auto* const checksums = new Checksums;
  return *checksums;
}

// Those of `roots` in which the model's other files are looked up: the one that has it, lest they be another's of the
// same name.
std::vector<std::string> RootsOf(const std::string& path, const std::vector<std::string>& roots) {
  // An absolute path names its root, and those beside it too.
  if (IsUpload(path) || absl::StartsWith(path, "/")) return roots;
  for (const std::string& root : roots) {
    if (!absl::IsNotFound(data::OpenBeneath(path, {root}).status())) return {root};
  }
  return roots;
}

// An upload has nothing beside it.
absl::StatusOr<std::string> ReadBeside(const std::string& path, const ExternalPart& part,
                                       const std::vector<std::string>& roots) {
  if (IsUpload(path)) return absl::NotFoundError("");
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  AMPD_ASSIGN_OR_RETURN(const auto file, data::OpenBeneath(absl::StrCat(folder, part.location), roots));
  AMPD_ASSIGN_OR_RETURN(const int64_t length, part.LengthWithin(file->size()));
  std::string bytes(static_cast<size_t>(length), '\0');
  AMPD_RETURN_IF_ERROR(file->ReadAt(part.offset, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()}));
  return bytes;
}

}  // namespace

absl::Status ReadOnnxFile(const ResolvedJobSpec& spec, const std::vector<std::string>& data_roots,
                          const std::string& upload_dir) {
  if (!spec.proto().model().has_onnx()) return absl::OkStatus();
  const std::string& path = spec.proto().model().onnx().path();
  const std::vector<std::string> roots = RootsOf(path, data_roots);
  AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadModelFile(path, roots, upload_dir, kMostOnnxBytes));
  Sha256 sha256;
  sha256.Append(bytes);
  const ReadPart read = [&](const ExternalPart& part) -> absl::StatusOr<std::string> {
    AMPD_ASSIGN_OR_RETURN(std::string taken, ReadBeside(path, part, roots));
    sha256.Append(taken);
    return taken;
  };
  absl::StatusOr<models::onnx::Model> parsed = models::onnx::Model::Parse(bytes, read);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  models::ProvideOnnxFile(path, std::make_shared<const models::onnx::Model>(*std::move(parsed)));
  std::string checksum = sha256.HexDigest();
  Checksums& checksums = TheChecksums();
  const MutexLock lock(&checksums.mutex);
  checksums.by_path[path] = std::move(checksum);
  return absl::OkStatus();
}

std::string OnnxChecksum(const ResolvedJobSpec& spec) {
  if (!spec.proto().model().has_onnx()) return "";
  Checksums& checksums = TheChecksums();
  const MutexLock lock(&checksums.mutex);
  const auto found = checksums.by_path.find(spec.proto().model().onnx().path());
  return found == checksums.by_path.end() ? "" : found->second;
}

absl::Status CheckOnnxFile(const ResolvedJobSpec& spec, const std::string& trained) {
  const std::string now = OnnxChecksum(spec);
  if (trained.empty() || now.empty() || now == trained) return absl::OkStatus();
  return WithFailureClass(absl::FailedPreconditionError(absl::StrCat(
                              "model.onnx.path: ", spec.proto().model().onnx().path(),
                              " is another file than the one that was trained (its SHA-256 is ", now, ", was ", trained,
                              "), perhaps another network; put that file back, or begin another job, "
                              "with start_from for these weights")),
                          v1::Failure::DATA);
}

std::set<std::string> InfiniteInOnnxFile(const ResolvedJobSpec& spec) {
  std::set<std::string> names;
  if (!spec.proto().model().has_onnx()) return names;
  for (const auto& [name, value] : models::FindImportedValues(spec.proto().model().onnx().path())) {
    const TensorView view = value->view();
    const absl::string_view bytes(static_cast<const char*>(view.data), view.bytes());
    if (view.dtype == DType::kF32 && !AllFinite(bytes)) names.insert(name);
  }
  return names;
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
