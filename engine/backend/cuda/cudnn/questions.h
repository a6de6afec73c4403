// What cuDNN was asked, so that nothing is asked twice, and not too much about a device that is not there.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDNN_QUESTIONS_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDNN_QUESTIONS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"

namespace ampd::cuda::cudnn {

// About a device that is not there; each takes cuDNN some 10 ms.
inline constexpr int kMostQuestionsWithoutDevice = 120;

// RESOURCE_EXHAUSTED where the context is not open and has been asked so often; else counts one more.
absl::Status CountQuestion(Context* context);

// The answer of `ask` to the first question with this key in the context; it is kept if it is OK or UNIMPLEMENTED.
// `key` names the type behind the answer, too. Errors are CountQuestion's and those of `ask`.
absl::StatusOr<std::shared_ptr<const void>> AskOnce(
    const std::string& key, Context* context, const std::function<absl::StatusOr<std::shared_ptr<const void>>()>& ask);

}  // namespace ampd::cuda::cudnn

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDNN_QUESTIONS_H_
