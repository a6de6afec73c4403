#include "engine/train/start_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/data/path.h"
#include "engine/train/checkpoint.h"
#include "engine/train/disk_layout.h"
#include "engine/train/failure.h"
#include "engine/train/onnx_file.h"
#include "engine/train/sha256.h"
#include "proto/spec/first_of.h"
#include "proto/spec/upload_path.h"

namespace ampd::train {
namespace {

constexpr char kModel[] = "model.safetensors";
constexpr char kManifest[] = "MANIFEST";
constexpr int64_t kMaxManifestBytes = 1 << 16;
constexpr int64_t kPieceBytes = 1 << 20;
constexpr size_t kNamesTold = 5;
// PyTorch's count of batches; nothing follows from it, and it reads files without it.
constexpr char kOptional[] = ".num_batches_tracked";

absl::Status ReadBytes(const data::InputFile& file, uint64_t begin, std::string* bytes) {
  return file.ReadAt(static_cast<int64_t>(begin), {reinterpret_cast<uint8_t*>(bytes->data()), bytes->size()});
}

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ReadHeader(const data::InputFile& file) {
  const auto size = static_cast<uint64_t>(file.size());
  std::string header(std::min<uint64_t>(size, 8), '\0');
  AMPD_RETURN_IF_ERROR(ReadBytes(file, 0, &header));
  AMPD_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(header, size));
  header.resize(header_bytes);
  AMPD_RETURN_IF_ERROR(ReadBytes(file, 0, &header));
  return ParseSafetensorsHeader(header, size);
}

// What MANIFEST says of model.safetensors.
absl::StatusOr<ManifestLine> ManifestOf(const std::string& folder) {
  AMPD_ASSIGN_OR_RETURN(const auto file, data::OpenBeneath(kManifest, {folder}));
  if (file->size() > kMaxManifestBytes) return absl::DataLossError("MANIFEST is too large");
  std::string text(static_cast<size_t>(file->size()), '\0');
  AMPD_RETURN_IF_ERROR(ReadBytes(*file, 0, &text));
  AMPD_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  const auto line = manifest.find(kModel);
  if (line != manifest.end()) return line->second;
  return absl::DataLossError(absl::StrCat("MANIFEST does not list ", kModel));
}

// The tensors of model.safetensors.
std::vector<const ir::Persistent*> TensorsOf(const runtime::ModelLayout& layout) {
  std::vector<const ir::Persistent*> tensors;
  for (const ir::Persistent& parameter : layout.parameters()) tensors.push_back(&parameter);
  for (const ir::Persistent& state : layout.states()) {
    if (state.in_model_file) tensors.push_back(&state);
  }
  return tensors;
}

bool CanRead(absl::string_view code, DType dtype) {
  if (dtype == DType::kI64) return code == "I64";
  return dtype == DType::kF32 && (code == "F32" || code == "F16" || code == "BF16" || code == "F64");
}

template <typename T>
T Element(absl::string_view bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Values of a float `code`, in the file's order.
std::vector<float> Decode(absl::string_view code, absl::string_view bytes, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (code == "F32") {
      values[i] = Element<float>(bytes, i);
    } else if (code == "F16") {
      values[i] = ToFloat(Half{Element<uint16_t>(bytes, i)});
    } else if (code == "BF16") {
      values[i] = ToFloat(BFloat16{Element<uint16_t>(bytes, i)});
    } else {
      values[i] = static_cast<float>(Element<double>(bytes, i));
    }
  }
  return values;
}

// How the names of file and model differ.
struct Differences {
  std::vector<std::string> missing, unexpected, shapes, dtypes;
  size_t same = 0;

  bool names_differ() const { return !missing.empty() || !unexpected.empty(); }

  // Of each kind in turn.
  std::vector<std::string> Sentences(bool with_names) const {
    std::vector<std::string> sentences;
    const auto add = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) sentences.push_back(absl::StrCat(what, FirstOf(names, kNamesTold)));
    };
    if (with_names) {
      add("it lacks ", missing);
      add("the model has no ", unexpected);
    }
    add("of another shape: ", shapes);
    add("of a dtype other than F32, F16, BF16 and F64: ", dtypes);
    return sentences;
  }
};

Differences Compare(const std::map<std::string, SafetensorsEntry>& entries,
                    const std::vector<const ir::Persistent*>& tensors) {
  Differences found;
  std::map<std::string, const ir::Persistent*> model;
  for (const ir::Persistent* tensor : tensors) {
    model[tensor->name] = tensor;
    const auto entry = entries.find(tensor->name);
    if (entry == entries.end()) {
      if (!absl::EndsWith(tensor->name, kOptional)) found.missing.push_back(tensor->name);
      continue;
    }
    ++found.same;
    const Shape expected = DiskShape(*tensor);
    if (entry->second.shape != expected) {
      found.shapes.push_back(absl::StrCat(tensor->name, " is ", ShapeString(entry->second.shape), ", the model's ",
                                          ShapeString(expected)));
    } else if (!CanRead(entry->second.code, tensor->type.dtype)) {
      found.dtypes.push_back(absl::StrCat(tensor->name, " (", entry->second.code, ")"));
    }
  }
  for (const auto& [name, entry] : entries) {
    if (model.count(name) == 0 && !absl::EndsWith(name, kOptional)) found.unexpected.push_back(name);
  }
  return found;
}

}  // namespace

std::string StartName(const v1::WeightSource& source) {
  if (!source.has_job_id()) return source.path();
  return absl::StrCat("checkpoint ", source.checkpoint(), " of job ", source.job_id());
}

absl::StatusOr<StartWeights> StartWeights::Open(const v1::WeightSource& source, const StartSources& sources) {
  StartWeights weights;
  weights.name_ = StartName(source);
  weights.allow_missing_ = source.allow_missing();
  std::string path = source.path();
  std::vector<std::string> roots = sources.data_roots;
  if (source.has_job_id()) {
    weights.field_ = "start_from.job_id";
    path = kModel;
    roots = {sources.start_checkpoint_dir};
    const absl::StatusOr<ManifestLine> line = ManifestOf(sources.start_checkpoint_dir);
    if (!line.ok()) return Annotate(line.status(), weights.name_);
    weights.sha256_ = line->sha256;
  } else {
    weights.field_ = "start_from.path";
    weights.sha256_ = UploadChecksum(path);
    if (!weights.sha256_.empty()) {
      path = weights.sha256_;
      roots = {sources.upload_dir};
    }
  }
  absl::StatusOr<std::shared_ptr<const data::InputFile>> file = data::OpenBeneath(path, roots);
  if (!file.ok()) return Annotate(file.status(), weights.name_);
  weights.file_ = *std::move(file);
  absl::StatusOr<std::map<std::string, SafetensorsEntry>> entries = ReadHeader(*weights.file_);
  if (absl::IsInvalidArgument(entries.status())) {
    return InvalidFields(
        {{weights.field_, absl::StrCat(weights.name_, ": ", std::string(entries.status().message()))}});
  }
  if (!entries.ok()) return Annotate(entries.status(), weights.name_);
  weights.entries_ = *std::move(entries);
  return weights;
}

absl::StatusOr<std::vector<std::string>> StartWeights::Check(const runtime::ModelLayout& layout) const {
  const Differences found = Compare(entries_, TensorsOf(layout));
  const bool tolerated = allow_missing_ && found.same > 0;
  std::vector<std::string> wrong = found.Sentences(!tolerated);
  if (!wrong.empty()) {
    // What has another name is another tensor, which may be missing.
    const bool shapes_alone = !found.shapes.empty() && found.dtypes.empty() && (tolerated || !found.names_differ());
    return InvalidFields(
        {{field_, absl::StrCat(name_, " does not fit the model: ", absl::StrJoin(wrong, "; "),
                               shapes_alone ? "; to draw these anew, give their layers other names and set "
                                              "start_from.allow_missing"
                                            : "")}});
  }
  if (!found.names_differ()) return std::vector<std::string>();
  std::vector<std::string> notes = found.Sentences(true);
  for (std::string& note : notes) note = absl::StrCat("start_from: ", name_, ": ", note);
  return notes;
}

absl::Status StartWeights::CheckSum() const {
  if (sha256_.empty()) return absl::OkStatus();
  Sha256 sum;
  std::string piece;
  for (int64_t at = 0; at < file_->size(); at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, file_->size() - at)));
    AMPD_RETURN_IF_ERROR(ReadBytes(*file_, static_cast<uint64_t>(at), &piece));
    sum.Append(piece);
  }
  const std::string found = sum.HexDigest();
  if (found == sha256_) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name_, " is damaged: its bytes have the checksum ", found, ", not ", sha256_));
}

absl::Status StartWeights::LoadTensor(const ir::Persistent& tensor, void* to, runtime::Memory* memory) const {
  const auto it = entries_.find(tensor.name);
  if (it == entries_.end()) return absl::OkStatus();
  const SafetensorsEntry& entry = it->second;
  std::string bytes(entry.end - entry.begin, '\0');
  AMPD_RETURN_IF_ERROR(ReadBytes(*file_, entry.begin, &bytes));
  const int64_t count = NumElements(tensor.type.shape);
  const int64_t size = count * SizeOf(tensor.type.dtype);
  if (!IsFloat(tensor.type.dtype)) {
    return runtime::WriteFromHost(memory, to, size, [&](void* target) { FromDisk(tensor, bytes.data(), target); });
  }
  const std::vector<float> values = Decode(entry.code, bytes, static_cast<size_t>(count));
  const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  if (bad != values.end()) {
    return InvalidFields({{field_, absl::StrCat(name_, ": '", tensor.name, "' is not finite in FP32: ", *bad,
                                                " at element ", bad - values.begin(), " of ", count)}});
  }
  return runtime::WriteFromHost(memory, to, size, [&](void* target) { FromDisk(tensor, values.data(), target); });
}

absl::Status StartWeights::Load(runtime::ModelMemory* memory) const {
  AMPD_RETURN_IF_ERROR(CheckSum());
  const runtime::ModelLayout& layout = memory->layout();
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    AMPD_RETURN_IF_ERROR(
        LoadTensor(layout.parameters()[i], memory->Master(static_cast<int32_t>(i)).data, memory->memory()));
  }
  for (size_t i = 0; i < layout.states().size(); ++i) {
    if (!layout.states()[i].in_model_file) continue;
    AMPD_RETURN_IF_ERROR(LoadTensor(layout.states()[i], memory->State(static_cast<int32_t>(i)).data, memory->memory()));
  }
  return absl::OkStatus();
}

absl::Status SetFirstWeights(const ResolvedJobSpec& spec, const TrainerOptions& options, runtime::ModelMemory* memory,
                             std::vector<std::string>* notes) {
  AMPD_RETURN_IF_ERROR(memory->Initialize(spec.proto().seed()));
  AMPD_RETURN_IF_ERROR(TakeOnnxWeights(spec, memory));
  if (!spec.proto().has_start_from()) return absl::OkStatus();
  const auto load = [&]() -> absl::StatusOr<std::vector<std::string>> {
    AMPD_ASSIGN_OR_RETURN(const StartWeights weights,
                          StartWeights::Open(spec.proto().start_from(),
                                             {options.data_roots, options.upload_dir, options.start_checkpoint_dir}));
    AMPD_ASSIGN_OR_RETURN(std::vector<std::string> found, weights.Check(memory->layout()));
    AMPD_RETURN_IF_ERROR(weights.Load(memory));
    return found;
  };
  absl::StatusOr<std::vector<std::string>> found = load();
  if (absl::IsInvalidArgument(found.status())) return found.status();
  // What is missing or damaged is so the next time too; a device's memory is another matter.
  if (absl::IsNotFound(found.status()) || absl::IsDataLoss(found.status()) ||
      absl::IsPermissionDenied(found.status())) {
    return WithFailureClass(Annotate(found.status(), "start_from"), v1::Failure::DATA);
  }
  AMPD_RETURN_IF_ERROR(found.status());
  if (notes != nullptr) *notes = *std::move(found);
  return absl::OkStatus();
}

}  // namespace ampd::train
