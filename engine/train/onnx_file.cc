#include "engine/train/onnx_file.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/data/path.h"
#include "engine/models/imported_files.h"
#include "engine/models/onnx/import.h"
#include "engine/train/failure.h"
#include "engine/train/finite_tensors.h"
#include "engine/train/model_file.h"
#include "engine/train/sha256.h"
#include "proto/spec/first_of.h"
#include "proto/spec/names.h"

namespace ampd::train {

namespace {

// What was read of a model.
struct Contents {
  // Of its file, followed by what tensors have in others.
  std::string checksum;
  // Those, and those that are not there.
  std::set<std::string> others, missing;
};

// Beside the files themselves, which engine/models keeps by path too.
struct AllContents {
  Mutex mutex;
  std::map<std::string, Contents> by_path ABSL_GUARDED_BY(mutex);
};

AllContents& TheContents() {
  static auto* const contents = new AllContents;
  return *contents;
}

Contents ContentsOf(const ResolvedJobSpec& spec) {
  if (!spec.proto().model().has_onnx()) return {};
  AllContents& contents = TheContents();
  const MutexLock lock(&contents.mutex);
  const auto found = contents.by_path.find(spec.proto().model().onnx().path());
  return found == contents.by_path.end() ? Contents() : found->second;
}

std::string ListOf(const std::set<std::string>& files) {
  constexpr size_t kShown = 4;
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(Quoted(file));
  return FirstOf(names, kShown);
}

// The root that has the model: another's files of the same name are none of its own. All are one for an absolute path,
// which names its root, and so do those beside it.
absl::Span<const std::string> RootOf(const std::string& path, absl::Span<const std::string> roots) {
  if (absl::StartsWith(path, "/")) return roots;
  for (size_t i = 0; i < roots.size(); ++i) {
    // A link that leads to another root is there, too.
    if (!absl::IsNotFound(data::OpenBeneath(path, roots.subspan(i, 1)).status())) return roots.subspan(i, 1);
  }
  return roots;
}

// `root`: the model's, of `roots`. An upload has nothing beside it.
absl::StatusOr<std::string> ReadBeside(const std::string& path, const ExternalPart& part,
                                       absl::Span<const std::string> root, const std::vector<std::string>& roots) {
  if (IsUpload(path)) return absl::NotFoundError("");
  // Names in datasets have no such parts.
  const auto is_name = [](absl::string_view one) { return !one.empty() && one != "."; };
  const std::vector<std::string> parts = absl::StrSplit(part.location, '/', is_name);
  const std::string beside = absl::StrCat(path.substr(0, path.rfind('/') + 1), absl::StrJoin(parts, "/"));
  absl::Status there = data::OpenBeneath(beside, root).status();
  if (absl::IsNotFound(there)) return there;
  // With all of them, as a link may lead from one to another; the first has it.
  std::vector<std::string> ordered(root.begin(), root.end());
  for (const std::string& other : roots) {
    if (std::find(root.begin(), root.end(), other) == root.end()) ordered.push_back(other);
  }
  AMPD_ASSIGN_OR_RETURN(const auto file, data::OpenBeneath(beside, ordered));
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
  AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadModelFile(path, data_roots, upload_dir, kMostOnnxBytes));
  const absl::Span<const std::string> root = RootOf(path, data_roots);
  Sha256 sha256;
  sha256.Append(bytes);
  Contents contents;
  const ReadPart read = [&](const ExternalPart& part) {
    absl::StatusOr<std::string> taken = ReadBeside(path, part, root, data_roots);
    if (taken.ok()) sha256.Append(*taken);
    (absl::IsNotFound(taken.status()) ? contents.missing : contents.others).insert(part.location);
    return taken;
  };
  const auto& outputs = spec.proto().model().onnx().outputs();
  absl::StatusOr<models::onnx::Model> parsed =
      models::onnx::Model::Parse(bytes, read, {outputs.begin(), outputs.end()});
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  models::ProvideOnnxFile(path, std::make_shared<const models::onnx::Model>(*std::move(parsed)));
  contents.checksum = sha256.HexDigest();
  AllContents& all = TheContents();
  const MutexLock lock(&all.mutex);
  all.by_path[path] = std::move(contents);
  return absl::OkStatus();
}

std::string OnnxChecksum(const ResolvedJobSpec& spec) { return ContentsOf(spec).checksum; }

absl::Status CheckOnnxFile(const ResolvedJobSpec& spec, const std::string& trained) {
  const Contents now = ContentsOf(spec);
  if (trained.empty() || now.checksum.empty() || now.checksum == trained) return absl::OkStatus();
  const std::string& path = spec.proto().model().onnx().path();
  std::string what;
  if (!now.missing.empty()) {
    what = absl::StrCat(path, " is not what was trained: ", ListOf(now.missing),
                        ", where tensors of it lie, is not there, or another of its files is not what it was (their ",
                        "SHA-256 is ", now.checksum, ", was ", trained, "); put that back");
  } else if (!now.others.empty()) {
    what = absl::StrCat(path, " is another file than the one that was trained, or tensors of it in ",
                        ListOf(now.others), " are others (the SHA-256 of its bytes and theirs is ", now.checksum,
                        ", was ", trained, "); put those files back");
  } else {
    what = absl::StrCat(path, " is another file than the one that was trained (its SHA-256 is ", now.checksum, ", was ",
                        trained, "), perhaps another network; put that file back");
  }
  return WithFailureClass(absl::FailedPreconditionError(absl::StrCat(
                              "model.onnx.path: ", what, ", or begin another job, with start_from for these weights")),
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
