// Convolutions, independent of the library that computes them: engine/backend/cuda/cudnn has them by cuDNN,
// no_cudnn what is linked without it, and tests run a stand-in on the host. Exactly one of them is linked.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONV_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONV_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"

namespace ampd::cuda {

enum class ConvKind { kForward, kGradInput, kGradFilter };

// What is computed along with the convolution, without its operands or result going through memory once more.
enum class ConvFusion {
  kNone,
  // Forward: result = relu(conv + bias), or without the relu. The bias has the operands' dtype.
  kBias,
  kBiasRelu,
  // Forward: also the sum and the sum of squares of each channel of the result, in f32.
  kStatistics,
  // Gradient by the input of relu(batch_norm(x)): the result is relu's gradient, dy * (batch_norm(x) > 0), and with it
  // come the gradients of batch norm's scale and bias, and the coefficients of the gradient by x:
  // dx = coefficient_dy * result + coefficient_x * x + coefficient_1.
  kReluBatchNormGrad,
  // Gradient by the filter where the image is relu(scale * x + bias); scale and bias have the operands' dtype, and what
  // is computed on the way may be rounded to it.
  kScaleBiasRelu,
};

// A cross-correlation with zero padding. The image is NHWC, the filter KRSC (C of one group), the output NPQK.
struct ConvDesc {
  ConvKind kind = ConvKind::kForward;
  ConvFusion fusion = ConvFusion::kNone;
  std::array<int64_t, 4> image = {};
  std::array<int64_t, 4> filter = {};
  std::array<int64_t, 4> output = {};
  std::array<int64_t, 2> strides = {1, 1};
  std::array<int64_t, 2> dilations = {1, 1};
  std::array<int64_t, 2> before = {};  // padding above and to the left
  std::array<int64_t, 2> after = {};   // below and to the right; less than what is needed is none
  int64_t groups = 1;
  // Of both operands: f32, f16 or bf16. Products are summed in f32.
  DType operands = DType::kF32;
  // The operands' dtype, or f32.
  DType result = DType::kF32;
  // f32 operands may be rounded to TF32.
  bool tf32 = false;
};

// What one kind of convolution reads and writes, all in device memory and dense:
//   forward      a = image, b = filter, result = output
//   grad input   a = gradient by the output, b = filter, result = gradient by the image
//   grad filter  a = gradient by the output, b = image, result = gradient by the filter
// The others as the fusion says: vectors of one value a channel, f32 where nothing else is said.
struct ConvArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* result = nullptr;
  void* workspace = nullptr;  // workspace_bytes(); may be null where that is 0
  const void* bias = nullptr;
  const void* scale = nullptr;
  float* sum = nullptr;
  float* sum_of_squares = nullptr;
  // Of kReluBatchNormGrad: the input of batch norm in the operands' dtype, its statistics, and what comes out.
  const void* x = nullptr;
  const float* mean = nullptr;
  const float* inverse_deviation = nullptr;
  float* scale_gradient = nullptr;
  float* bias_gradient = nullptr;
  float* coefficient_dy = nullptr;
  float* coefficient_x = nullptr;
  float* coefficient_1 = nullptr;
  // Enqueues what writes a and b, where they are the caller's own copies; else empty. An algorithm that is tried may
  // write where it must not, so it is called before each run that one is judged by, and before the run that stays where
  // any was tried.
  std::function<absl::Status()> renew;
};

// The most workspace that a convolution may ask for.
inline constexpr int64_t kMaxConvWorkspace = int64_t{256} << 20;

// Thread-compatible.
class Conv {
 public:
  // Makes a plan from the context's properties alone; no driver is asked. `name` is the node's, for errors.
  // UNIMPLEMENTED, saying why, where there is no plan within kMaxConvWorkspace that sums in f32 and gives the same bits
  // every time, or none is trusted: the caller then computes it otherwise. `context` outlives the convolution.
  static absl::StatusOr<std::unique_ptr<Conv>> Create(std::string name, const ConvDesc& desc, Context* context);
  virtual ~Conv() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Enqueues on the context's stream. The first call settles the algorithm: what Context::autotune() remembers, else
  // what it measures now, waiting for the stream, else (no autotune, or a capture) the library's first guess.
  virtual absl::Status Run(const ConvArgs& args) = 0;
  // The library's name for what it runs, or would without having measured; for diagnostics.
  virtual std::string algorithm() const = 0;
};

// The library and its version, for AutotuneKey.
std::string ConvLibrary();
// As people call it, e.g. "cuDNN 9.19.0"; empty without one.
std::string ConvLibraryName();
// Where its files lie; empty without one.
std::string ConvLibraryFolder();
// Names all of `desc`, for AutotuneCache and errors.
std::string ConvKey(const ConvDesc& desc);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONV_H_
