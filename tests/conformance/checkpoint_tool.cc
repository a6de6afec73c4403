// Gives scripts in other languages what they compare against:
//   checkpoint_tool train SPEC.json FOLDER [DATA EVENTS]  trains a job on data beneath DATA; checkpoints go to FOLDER,
//   and
//                                                         its events, a line of JSON each, to EVENTS
//   checkpoint_tool --device=DEVICE train ...           the same on that device: "cuda" or a GPU's UUID
//   checkpoint_tool logits SPEC.json CHECKPOINT IN OUT [DATA [LENGTHS]]
//                                                       evaluates a checkpoint: IN and OUT are raw f32, IN holds whole
//                                                       evaluation batches of inputs in memory order (channels last);
//                                                       LENGTHS their lengths, raw i32
//   checkpoint_tool onnx MODEL BATCH OUT NAME=IN...     runs an ONNX model on one batch: OUT is raw f32 as the model
//                                                       lays it out, IN its inputs, raw f32 but for INT32 ones, i32
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/models/onnx/import.h"
#include "engine/train/files.h"
#include "engine/train/onnx_file.h"
#include "engine/train/planned_model.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"
#include "google/protobuf/util/json_util.h"
#include "tests/conformance/graph_runner.h"

namespace ampd::train {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;

class Recorder : public TrainerObserver {
 public:
  absl::Status OnEvent(v1::JobEvent event) override {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    const auto printed = google::protobuf::util::MessageToJsonString(event, &lines, options);
    lines += "\n";
    return printed.ok() ? absl::OkStatus() : absl::InternalError(printed.ToString());
  }

  std::string lines;
};

absl::StatusOr<ResolvedJobSpec> ReadSpec(const std::string& path) {
  AMPD_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxBytes));
  v1::JobSpec spec;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &spec);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.ToString());
  return ResolveJobSpec(std::move(spec));
}

// `data` and `events` may be empty.
absl::Status TrainJob(const ResolvedJobSpec& spec, const std::string& folder, const std::string& data,
                      const std::string& events, const std::string& device) {
  Recorder recorder;
  TrainerOptions options;
  options.device = device;
  if (device == "cuda") options.make_backend = [] { return MakeCudaBackend(""); };
  options.checkpoint_dir = folder;
  if (!data.empty()) options.data_roots = {data};
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(spec, options, &recorder));
  AMPD_RETURN_IF_ERROR(trainer->Run().status());
  if (events.empty()) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(events));
  AMPD_RETURN_IF_ERROR(file.Append(recorder.lines));
  return file.Close();
}

// What the evaluation reads besides "x": labels, which do not reach the logits, so that any will do, and lengths (may
// be null). Both are read by the run.
absl::Status BindOthers(const PlannedModel& plan, const std::string& zeros, const char* lengths,
                        runtime::Executor* eval) {
  for (const auto& input : plan.eval.inputs) {
    if (static_cast<size_t>(runtime::BytesOf(input)) > zeros.size()) {
      return absl::InternalError(absl::StrCat(input.name, " is larger than the inputs"));
    }
    const bool given = input.name == "lengths" && lengths != nullptr;
    AMPD_RETURN_IF_ERROR(eval->BindInput(input.name, given ? lengths : zeros.data()));
  }
  return absl::OkStatus();
}

struct LogitsFiles {
  std::string in, out, data, lengths;
};

absl::Status WriteLogits(const ResolvedJobSpec& spec, const std::string& checkpoint, const LogitsFiles& files) {
  std::vector<std::string> roots;
  if (!files.data.empty()) roots.push_back(files.data);
  AMPD_RETURN_IF_ERROR(ReadOnnxFile(spec, roots, ""));
  AMPD_ASSIGN_OR_RETURN(const auto info, data::DescribeDataset(spec.proto().data(), roots, false));
  AMPD_ASSIGN_OR_RETURN(const models::SampleInfo sample, SampleInfoOf(spec.proto(), info, nullptr));
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeBackend("cpu-0", 1));
  AMPD_ASSIGN_OR_RETURN(const auto plan, PlanModel(spec, sample, std::move(backend), 1));
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> loaded, LoadedModel::Create(*plan));
  LoadedModel& model = *loaded;
  AMPD_ASSIGN_OR_RETURN(std::string bytes, ReadFile(checkpoint + "/model.safetensors", kMaxBytes));
  AMPD_ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Parse(std::move(bytes)));
  AMPD_RETURN_IF_ERROR(LoadModel(file, &model.memory));
  AMPD_RETURN_IF_ERROR(model.memory.PublishAll());
  AMPD_ASSIGN_OR_RETURN(const std::string inputs, ReadFile(files.in, kMaxBytes));
  std::string lengths;
  if (!files.lengths.empty()) {
    AMPD_ASSIGN_OR_RETURN(lengths, ReadFile(files.lengths, kMaxBytes));
  }
  AMPD_ASSIGN_OR_RETURN(FileWriter logits, FileWriter::Create(files.out));
  const size_t samples = static_cast<size_t>(EvaluationBatch(spec.proto().train()));
  const size_t batch = samples * static_cast<size_t>(NumElements(sample.input_shape)) * sizeof(float);
  if (inputs.size() % batch != 0) return absl::InvalidArgumentError("the inputs are no whole batches");
  const std::string zeros(std::max<size_t>(batch, samples * static_cast<size_t>(plan->outputs) * 8), '\0');
  AlignedBuffer staging;
  for (size_t at = 0; at < inputs.size(); at += batch) {
    const size_t first = at / batch * samples * sizeof(int32_t);
    const char* of_batch = lengths.size() >= first + samples * sizeof(int32_t) ? lengths.data() + first : nullptr;
    AMPD_RETURN_IF_ERROR(BindOthers(*plan, zeros, of_batch, model.eval.get()));
    AMPD_RETURN_IF_ERROR(model.eval->BindInput("x", inputs.data() + at));
    AMPD_RETURN_IF_ERROR(model.eval->Run(runtime::StepState()));
    AMPD_ASSIGN_OR_RETURN(const TensorView view, model.eval->Output("logits"));
    AMPD_ASSIGN_OR_RETURN(const TensorView result, runtime::OnHost(model.memory.memory(), view, &staging));
    AMPD_RETURN_IF_ERROR(logits.Append({result.as<char>(), static_cast<size_t>(result.bytes())}));
  }
  return logits.Close();
}

// The file as a tensor of the input that a model declares, on `batch` samples.
absl::StatusOr<std::shared_ptr<const Tensor>> ReadInput(const models::onnx::ModelValue& input, int64_t batch,
                                                        const std::string& path) {
  AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxBytes));
  Shape shape = input.shape;
  if (shape.empty() || shape[0] != -1) return absl::InvalidArgumentError(input.name + " leaves its batch not open");
  shape[0] = batch;
  const DType dtype = input.element_type == "INT64"   ? DType::kI64
                      : input.element_type == "INT32" ? DType::kI32
                                                      : DType::kF32;
  auto tensor = std::make_shared<Tensor>(dtype, shape);
  if (static_cast<int64_t>(bytes.size()) != tensor->size() * 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", bytes.size(), " bytes for ", input.name, " ", ShapeString(shape)));
  }
  if (dtype != DType::kI64) {
    std::memcpy(tensor->view().data, bytes.data(), bytes.size());
    return tensor;
  }
  for (int64_t i = 0; i < tensor->size(); ++i) {
    float value;
    std::memcpy(&value, bytes.data() + i * 4, sizeof(value));
    tensor->as<int64_t>()[static_cast<size_t>(i)] = static_cast<int64_t>(value);
  }
  return tensor;
}

absl::Status RunOnnx(const std::string& path, int64_t batch, const std::string& out_path,
                     const std::map<std::string, std::string>& files) {
  AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxBytes));
  AMPD_ASSIGN_OR_RETURN(const models::onnx::Model model, models::onnx::Model::Parse(bytes));
  models::onnx::ImportOptions options;
  for (const models::onnx::ModelValue& input : model.inputs()) {
    const auto file = files.find(input.name);
    if (file == files.end()) return absl::InvalidArgumentError("no file for the input " + input.name);
    AMPD_ASSIGN_OR_RETURN(auto tensor, ReadInput(input, batch, file->second));
    options.input_shapes[input.name] = tensor->shape();
    options.input_values[input.name] = std::move(tensor);
  }
  const auto values = std::exchange(options.input_values, {});
  AMPD_ASSIGN_OR_RETURN(const models::onnx::ImportedModel imported, model.Import(options));
  AMPD_ASSIGN_OR_RETURN(const auto outputs, testing::RunImported(imported, values, 1));
  AMPD_ASSIGN_OR_RETURN(FileWriter out, FileWriter::Create(out_path));
  const TensorView result = outputs.at("output").view();
  AMPD_RETURN_IF_ERROR(out.Append({result.as<char>(), static_cast<size_t>(result.bytes())}));
  return out.Close();
}

absl::Status Main(int argc, char** argv) {
  std::string device = "cpu-0";
  absl::string_view first = argc > 1 ? argv[1] : "";
  if (absl::ConsumePrefix(&first, "--device=")) {
    device = std::string(first);
    --argc;
    ++argv;
  }
  const std::string verb = argc > 1 ? argv[1] : "";
  const bool known = (verb == "train" && (argc == 4 || argc == 6)) || (verb == "logits" && argc >= 6 && argc <= 8) ||
                     (verb == "onnx" && argc >= 6);
  if (!known) {
    return absl::InvalidArgumentError(
        "usage: checkpoint_tool [--device=DEVICE] train SPEC FOLDER [DATA EVENTS] | logits SPEC CHECKPOINT IN OUT "
        "[DATA [LENGTHS]] | onnx MODEL BATCH OUT NAME=IN...");
  }
  const auto argument = [&](int i) { return argc > i ? std::string(argv[i]) : std::string(); };
  if (verb == "onnx") {
    int64_t batch = 0;
    if (!absl::SimpleAtoi(argv[3], &batch) || batch < 1) return absl::InvalidArgumentError("BATCH is no number");
    std::map<std::string, std::string> files;
    for (int i = 5; i < argc; ++i) files.insert(absl::StrSplit(argv[i], absl::MaxSplits('=', 1)));
    return RunOnnx(argv[2], batch, argv[4], files);
  }
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, ReadSpec(argv[2]));
  if (verb == "logits") return WriteLogits(spec, argv[3], {argv[4], argv[5], argument(6), argument(7)});
  return TrainJob(spec, argv[3], argc == 6 ? argv[4] : "", argc == 6 ? argv[5] : "", device);
}

}  // namespace
}  // namespace ampd::train

int main(int argc, char** argv) {
  const absl::Status status = ampd::train::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
