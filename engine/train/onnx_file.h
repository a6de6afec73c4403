// The file of model.onnx: read for whoever plans or trains a job, and the numbers that its weights begin with.
#ifndef AMPD_ENGINE_TRAIN_ONNX_FILE_H_
#define AMPD_ENGINE_TRAIN_ONNX_FILE_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/model_memory.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// Reads the file, with what its tensors have in others beside it, and provides it (engine/models/imported_files.h);
// does nothing for a job without. Errors are ReadModelFile's, of at most kMostOnnxBytes, and onnx::Model::Parse's.
absl::Status ReadOnnxFile(const ResolvedJobSpec& spec, const std::vector<std::string>& data_roots,
                          const std::string& upload_dir);

// SHA-256 of the file that ReadOnnxFile() read of the path last, followed by what its tensors have in others, in their
// order; in lower-case hex; empty for a job without, and where none was read. Thread-safe.
std::string OnnxChecksum(const ResolvedJobSpec& spec);

// FAILED_PRECONDITION of class DATA where that is another file than `trained`, a checkpoint's TrainState::onnx_sha256:
// its tensors would be taken for those of another network. Empty is unknown, and passes.
absl::Status CheckOnnxFile(const ResolvedJobSpec& spec, const std::string& trained);

// Names of the file's parameters and states that begin with an infinity or NaN, as a mask may that looks like weights.
std::set<std::string> InfiniteInOnnxFile(const ResolvedJobSpec& spec);

// Sets masters and committed states of the model that was planned last to the file's numbers, but for those that the
// spec draws anew. Published copies are
// the caller's to write. Does nothing for a job without a file; INTERNAL where a shape is not the model's.
absl::Status TakeOnnxWeights(const ResolvedJobSpec& spec, runtime::ModelMemory* memory);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_ONNX_FILE_H_
