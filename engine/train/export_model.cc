#include "engine/train/export_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/models/export_forward.h"
#include "engine/models/onnx/export.h"
#include "engine/models/phase_calls.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/disk_layout.h"
#include "engine/train/files.h"
#include "engine/train/onnx_file.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

using Form = v1::ExportModelRequest;

// Training pads sequences to multiples of it (SampleInfo::buckets).
constexpr int64_t kLengthStep = 8;
// Two batches, by whose difference the exporter knows what follows the batch.
constexpr int64_t kBatch = 2, kTwinBatch = 3;

absl::StatusOr<DType> DTypeOf(const v1::ExportModelRequest& request) {
  switch (request.dtype()) {
    case Form::DTYPE_UNSPECIFIED:
    case Form::FLOAT32:
      return DType::kF32;
    case Form::FLOAT16:
      return DType::kF16;
    case Form::BFLOAT16:
      return DType::kBF16;
    default:
      return absl::InvalidArgumentError(absl::StrCat("dtype: ", request.dtype(), " is not known"));
  }
}

absl::Status Write(const std::string& path, const std::function<absl::Status(FileWriter*)>& write) {
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(path));
  AMPD_RETURN_IF_ERROR(write(&file));
  return file.Close();
}

uint16_t Rounded(float value, DType dtype) {
  return dtype == DType::kF16 ? ToHalf(value).bits : ToBFloat16(value).bits;
}

float Widened(uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? ToFloat(Half{bits}) : ToFloat(BFloat16{bits});
}

// f32 numbers, little-endian, in 16 bits.
absl::StatusOr<std::string> InSixteenBits(const std::string& name, absl::string_view bytes, DType dtype) {
  const size_t count = bytes.size() / sizeof(float);
  std::string result(count * sizeof(uint16_t), '\0');
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
    const uint16_t rounded = Rounded(value, dtype);
    if (std::isfinite(value) && !std::isfinite(Widened(rounded, dtype))) {
      return absl::FailedPreconditionError(absl::StrCat(name, "[", i, "] is ", value, ", which is infinite in ",
                                                        DTypeName(dtype), "; the largest number there is ",
                                                        MaxFinite(dtype)));
    }
    std::memcpy(result.data() + i * sizeof(uint16_t), &rounded, sizeof(uint16_t));
  }
  return result;
}

absl::Status CheckNetwork(const v1::ModelSpec& model, const std::string& network) {
  if (network.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const v1::Network& known : model.networks()) names.push_back(known.name());
  if (std::find(names.begin(), names.end(), network) != names.end()) return absl::OkStatus();
  if (names.empty()) {
    return absl::InvalidArgumentError("network: the job has no model.networks, so that there is none to name");
  }
  return absl::InvalidArgumentError(absl::StrCat("network: the model has no network ", Quoted(network), "; it has ",
                                                 absl::StrJoin(names, ", "),
                                                 ". Weights are a network's; its calls are for ONNX"));
}

// Of a network of several its own, without its name before theirs.
absl::Status WriteTensors(const Safetensors& weights, DType dtype, const std::string& network,
                          const std::string& path) {
  const std::string prefix = network.empty() ? "" : network + ".";
  std::vector<TensorSource> sources;
  std::string converted;
  for (const auto& [name, entry] : weights.entries()) {
    if (!absl::StartsWith(name, prefix)) continue;
    const bool rounds = entry.dtype == DType::kF32 && dtype != DType::kF32;
    const auto bytes = [&weights, &converted, &name = name, &entry = entry, rounds,
                        dtype]() -> absl::StatusOr<absl::string_view> {
      if (!rounds) return weights.Bytes(entry);
      AMPD_ASSIGN_OR_RETURN(converted, InSixteenBits(name, weights.Bytes(entry), dtype));
      return absl::string_view(converted);
    };
    sources.push_back({name.substr(prefix.size()), rounds ? dtype : entry.dtype, entry.shape, bytes});
  }
  if (sources.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("network ", network, " has no weights to write"));
  }
  return Write(path, [&](FileWriter* file) {
    return WriteSafetensors(sources, [file](absl::string_view bytes) { return file->Append(bytes); });
  });
}

// How long the longest sequences of the training were. Checkpoints of earlier builds do not say: there `stored`, the
// extent of time that samples are stored with, is at least as long, and no bucket behind it was used.
int64_t LongestTrained(const TrainState& state, const v1::DataSpec& data, int64_t stored) {
  if (!state.input.length_buckets.empty()) return state.input.length_buckets.back();
  const auto& given = data.length_buckets();
  if (given.empty()) return (stored + kLengthStep - 1) / kLengthStep * kLengthStep;
  const auto bucket = std::lower_bound(given.begin(), given.end(), stored);
  return bucket == given.end() ? *given.rbegin() : *bucket;
}

// The data is not read: these are the datasets that have lengths.
bool HasLengths(const v1::DatasetSpec& train) { return train.has_wav_folder() || !train.npy().lengths().empty(); }

models::SampleInfo SampleOf(const v1::JobSpec& spec, const v1::ModelPlan& plan, const TrainState& state) {
  models::SampleInfo sample;
  sample.input_shape.assign(plan.input_shape().begin(), plan.input_shape().end());
  sample.label_shape.assign(plan.label_shape().begin(), plan.label_shape().end());
  sample.target_features = plan.target_features();
  sample.lengths = HasLengths(spec.data().train());
  if (!sample.lengths || sample.input_shape.empty()) return sample;
  sample.input_shape[0] = LongestTrained(state, spec.data(), sample.input_shape[0]);
  return sample;
}

absl::StatusOr<absl::string_view> BytesOf(const Safetensors& weights, const ir::Persistent& tensor) {
  const auto it = weights.entries().find(tensor.name);
  if (it == weights.entries().end()) {
    return absl::FailedPreconditionError("the checkpoint has no such tensor: it is of another model");
  }
  const Shape expected = DiskShape(tensor);
  if (it->second.dtype != tensor.type.dtype || it->second.shape != expected) {
    return absl::FailedPreconditionError(absl::StrCat(
        "is ", DTypeName(it->second.dtype), " ", ShapeString(it->second.shape), " in the checkpoint, ",
        DTypeName(tensor.type.dtype), " ", ShapeString(expected), " in the model: the checkpoint is of another one"));
  }
  return weights.Bytes(it->second);
}

// The graph's images are channels last, and so are the model's where it came as a file whose are.
std::vector<int64_t> ImageAxes(const v1::ModelSpec& model, const ir::TensorType& type) {
  const bool as_they_are = type.shape.size() != 4 || (model.has_onnx() && !model.onnx().channels_first());
  return as_they_are ? std::vector<int64_t>() : std::vector<int64_t>{0, 3, 1, 2};
}

// An input of the graph, as people are told of it.
models::onnx::ExportedValue InputOf(const v1::ModelSpec& model, const ir::Value& value) {
  models::onnx::ExportedValue input{value.name, value.name, ImageAxes(model, value.type), ""};
  input.of_its_type = model.has_onnx();
  // Of a file the file's own names stay.
  if (model.has_onnx()) return input;
  if (value.name == "x") input.name = "input";
  absl::string_view name = value.name;
  if (!absl::ConsumePrefix(&name, "noise.")) return input;
  if (name != "input" && name != "output") input.name = std::string(name);
  const v1::NoiseSource* noise = models::FindNoise(model, std::string(name));
  const bool uniform = noise != nullptr && noise->distribution() == v1::NoiseSource::UNIFORM;
  input.description = uniform ? "uniform in [-1, 1)" : "normal, of mean 0 and variance 1";
  return input;
}

absl::Status WriteOnnx(const ResolvedJobSpec& spec, const v1::ExportRequest& request, const Safetensors& weights,
                       const std::string& path) {
  TrainState state;
  if (spec.proto().model().has_onnx() || HasLengths(spec.proto().data().train())) {
    AMPD_ASSIGN_OR_RETURN(state, ReadTrainState(request.checkpoint_dir()));
  }
  const models::SampleInfo sample = SampleOf(spec.proto(), request.plan(), state);
  if (sample.input_shape.empty()) {
    return absl::FailedPreconditionError(
        "what shape samples have is not known: the data could not be read when the job was submitted");
  }
  AMPD_RETURN_IF_ERROR(
      ReadOnnxFile(spec, {request.data_roots().begin(), request.data_roots().end()}, request.upload_dir()));
  if (spec.proto().model().has_onnx()) AMPD_RETURN_IF_ERROR(CheckOnnxFile(spec, state.onnx_sha256));
  const std::string& network = request.request().network();
  AMPD_ASSIGN_OR_RETURN(const ir::Graph graph, models::BuildExportForward(spec.proto(), sample, kBatch, network));
  AMPD_ASSIGN_OR_RETURN(const ir::Graph twin, models::BuildExportForward(spec.proto(), sample, kTwinBatch, network));
  models::onnx::ExportOptions options;
  options.name = spec.proto().name().empty() ? "ampd" : spec.proto().name();
  options.producer_version = AMPD_VERSION;
  if (!spec.proto().model().networks().empty()) {
    AMPD_ASSIGN_OR_RETURN(options.description, models::ExportedCall(spec.proto(), network));
  }
  const v1::ModelSpec& built = spec.proto().model();
  for (const ir::Value& value : graph.values) {
    if (value.kind == ir::ValueKind::kInput) options.inputs.push_back(InputOf(built, value));
  }
  const auto& [output, result] = *graph.outputs.begin();
  options.outputs = {{output, output, ImageAxes(built, graph.type(result)), ""}};
  options.bytes = [&](const ir::Persistent& tensor) { return BytesOf(weights, tensor); };
  AMPD_ASSIGN_OR_RETURN(const std::string model, models::onnx::ExportGraph(graph, twin, options));
  return Write(path, [&](FileWriter* file) { return file->Append(model); });
}

}  // namespace

absl::Status ExportModel(const ResolvedJobSpec& spec, const v1::ExportRequest& request, const std::string& path) {
  const v1::ExportModelRequest& asked = request.request();
  AMPD_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(asked));
  if (asked.form() == Form::ONNX && dtype != DType::kF32) {
    return absl::InvalidArgumentError("dtype: an ONNX model is FLOAT32");
  }
  if (!Form::Form_IsValid(asked.form())) {
    return absl::InvalidArgumentError(absl::StrCat("form: ", asked.form(), " is not known"));
  }
  AMPD_ASSIGN_OR_RETURN(const Safetensors weights, ReadWeights(request.checkpoint_dir(), asked.ema()));
  if (asked.form() == Form::ONNX) return WriteOnnx(spec, request, weights, path);
  AMPD_RETURN_IF_ERROR(CheckNetwork(spec.proto().model(), asked.network()));
  return WriteTensors(weights, dtype, asked.network(), path);
}

}  // namespace ampd::train
