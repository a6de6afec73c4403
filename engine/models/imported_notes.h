// What a job tells about a file in ONNX form before it trains it.
#ifndef AMPD_ENGINE_MODELS_IMPORTED_NOTES_H_
#define AMPD_ENGINE_MODELS_IMPORTED_NOTES_H_

#include <string>
#include <vector>

#include "ampd/v1/model.pb.h"

namespace ampd::models {

// A sentence for each guess about the file's tensors: weights in Constant nodes that are trained, single numbers that
// are, tensors that are though they may be tables, what is taken as a constant, and what stands where weights do but is
// no f32 initializer and so not trained. Of those that the output depends on and the job does not freeze; each names
// eight at most; and one for an activation at the end of the prediction that the loss does not expect. Empty where
// there is nothing to tell, and where the file was not provided (imported_files.h). `model` has onnx. Thread-safe.
std::vector<std::string> DescribeGuesses(const v1::ModelSpec& model);

// Of these the sentence about what is no f32 initializer; empty where there is none.
std::string DescribeFrozenWeights(const v1::OnnxModel& onnx);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_IMPORTED_NOTES_H_
