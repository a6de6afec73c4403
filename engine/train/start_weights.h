// First weights that a job takes from elsewhere (JobSpec.start_from) instead of drawing them.
#ifndef AMPD_ENGINE_TRAIN_START_WEIGHTS_H_
#define AMPD_ENGINE_TRAIN_START_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/core/safetensors.h"
#include "engine/data/input_file.h"
#include "engine/runtime/model_memory.h"
#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// For people: "weights.safetensors", "checkpoint step-000000500 of job 01h...".
std::string StartName(const v1::WeightSource& source);

// Where files lie; as TrainerOptions'.
struct StartSources {
  std::vector<std::string> data_roots;
  std::string upload_dir;
  std::string start_checkpoint_dir;
};

// A .safetensors file that was opened: names as PyTorch's state_dict, values in PyTorch's layouts (disk_layout.h).
// Immutable; thread-compatible.
class StartWeights {
 public:
  // Opens the file and reads its header. INVALID_ARGUMENT with the field when it is no safetensors file; NOT_FOUND when
  // it, or the checkpoint that was held for the job, is not there; else as data::OpenBeneath.
  static absl::StatusOr<StartWeights> Open(const v1::WeightSource& source, const StartSources& sources);

  // Whether names and shapes are the model's. As PyTorch's load_state_dict(strict=True): INVALID_ARGUMENT with the
  // field that lists the first names that the file lacks, that the model has not, that have another shape, and that are
  // of a dtype other than F32, F16, BF16 and F64. num_batches_tracked, as there, may be missing. With allow_missing the
  // first two are no errors but what is returned, for people, unless no tensor is the model's.
  absl::StatusOr<std::vector<std::string>> Check(const runtime::ModelLayout& layout) const;

  // Sets what Check() found in both, rounded to FP32: masters and committed states; the rest of `memory` stays.
  // Published copies and averages are the caller's to write. INVALID_ARGUMENT, naming the tensor, for a value that is
  // not finite in FP32; DATA_LOSS when the bytes do not have the checksum that the upload or checkpoint is known by.
  absl::Status Load(runtime::ModelMemory* memory) const;

 private:
  StartWeights() = default;
  absl::Status CheckSum() const;
  absl::Status LoadTensor(const ir::Persistent& tensor, void* to, runtime::Memory* memory) const;

  std::string name_;
  // In the spec.
  std::string field_;
  bool allow_missing_ = false;
  std::shared_ptr<const data::InputFile> file_;
  // Of all its bytes, hex; empty: not known.
  std::string sha256_;
  std::map<std::string, SafetensorsEntry> entries_;
};

// Draws the first masters and states of a job's model, and where `spec` says so takes them from elsewhere. What is
// worth telling goes to `notes` (may be null): warnings, as Check() gives them. Errors carry a failure class.
absl::Status SetFirstWeights(const ResolvedJobSpec& spec, const TrainerOptions& options, runtime::ModelMemory* memory,
                             std::vector<std::string>* notes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_START_WEIGHTS_H_
