// Gives scripts in other languages what they compare against:
//   checkpoint_tool train SPEC.json FOLDER [DATA EVENTS]  trains a job on data beneath DATA; checkpoints go to FOLDER,
//   and
//                                                         its events, a line of JSON each, to EVENTS
//   checkpoint_tool --device=DEVICE train ...           the same on that device: "cuda" or a GPU's UUID
//   checkpoint_tool logits SPEC.json CHECKPOINT IN OUT  evaluates a checkpoint: IN and OUT are raw f32, IN holds whole
//                                                       evaluation batches of inputs in memory order (channels last)
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/strip.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"
#include "google/protobuf/util/json_util.h"

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

absl::Status WriteLogits(const ResolvedJobSpec& spec, const std::string& checkpoint, const std::string& in,
                         const std::string& out) {
  AMPD_ASSIGN_OR_RETURN(const auto info, data::DescribeDataset(spec.proto().data().train(), {}, false));
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeBackend("cpu-0", 1));
  AMPD_ASSIGN_OR_RETURN(const auto plan, PlanModel(spec, SampleInfoOf(info), std::move(backend), 1));
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> loaded, LoadedModel::Create(*plan));
  LoadedModel& model = *loaded;
  AMPD_ASSIGN_OR_RETURN(std::string bytes, ReadFile(checkpoint + "/model.safetensors", kMaxBytes));
  AMPD_ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Parse(std::move(bytes)));
  AMPD_RETURN_IF_ERROR(LoadModel(file, &model.memory));
  AMPD_RETURN_IF_ERROR(model.memory.PublishAll());
  AMPD_ASSIGN_OR_RETURN(const std::string inputs, ReadFile(in, kMaxBytes));
  AMPD_ASSIGN_OR_RETURN(FileWriter logits, FileWriter::Create(out));
  const size_t batch = static_cast<size_t>(EvaluationBatch(spec.proto().train()) * info.input_elements()) * 4;
  if (inputs.size() % batch != 0) return absl::InvalidArgumentError("the inputs are no whole batches");
  // Labels do not reach the logits; any will do.
  const std::string zeros(static_cast<size_t>(EvaluationBatch(spec.proto().train()) * plan->outputs) * 4, '\0');
  for (const auto& input : plan->eval.inputs) AMPD_RETURN_IF_ERROR(model.eval->BindInput(input.name, zeros.data()));
  AlignedBuffer staging;
  for (size_t at = 0; at < inputs.size(); at += batch) {
    AMPD_RETURN_IF_ERROR(model.eval->BindInput("x", inputs.data() + at));
    AMPD_RETURN_IF_ERROR(model.eval->Run(runtime::StepState()));
    AMPD_ASSIGN_OR_RETURN(const TensorView view, model.eval->Output("logits"));
    AMPD_ASSIGN_OR_RETURN(const TensorView result, runtime::OnHost(model.memory.memory(), view, &staging));
    AMPD_RETURN_IF_ERROR(logits.Append({result.as<char>(), static_cast<size_t>(result.bytes())}));
  }
  return logits.Close();
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
  if (!(verb == "train" && (argc == 4 || argc == 6)) && !(verb == "logits" && argc == 6)) {
    return absl::InvalidArgumentError(
        "usage: checkpoint_tool [--device=DEVICE] train SPEC FOLDER [DATA EVENTS] | logits SPEC CHECKPOINT IN OUT");
  }
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, ReadSpec(argv[2]));
  if (verb == "logits") return WriteLogits(spec, argv[3], argv[4], argv[5]);
  return TrainJob(spec, argv[3], argc == 6 ? argv[4] : "", argc == 6 ? argv[5] : "", device);
}

}  // namespace
}  // namespace ampd::train

int main(int argc, char** argv) {
  const absl::Status status = ampd::train::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
