// A product of matrices, as the backend's kernels ask for it: theirs is the description, whose library computes it is
// not their affair. cublas/gemm.cc is cuBLASLt's; tests/support/cuda_on_host/gemm.cc stands in where there is no GPU.
#ifndef AMPD_ENGINE_BACKEND_CUDA_GEMM_H_
#define AMPD_ENGINE_BACKEND_CUDA_GEMM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {

// A row-major matrix in memory, or a batch of them.
struct GemmMatrix {
  DType dtype = DType::kF32;
  // The rows in memory are the columns of the operand.
  bool transposed = false;
  // Elements from the start of a row in memory to the next one's.
  int64_t leading = 0;
  // Elements from one matrix of the batch to the next; 0: all read the same one.
  int64_t batch_stride = 0;
};

// What happens to the product, in fp32, before it is rounded to d's dtype.
enum class GemmEpilogue {
  kNone,
  kBias,                  // + bias, which has a value for each column
  kBiasGelu,              // d = gelu(product + bias), in its tanh form (docs/ops.md)
  kBiasGeluAux,           // aux = product + bias; d = gelu(aux)
  kGeluGrad,              // d = product * gelu'(aux), tanh form
  kGeluGradBiasGradient,  // and bias_gradient[column] = sum of d over the rows
  kBiasGradient,          // d = product; bias_gradient[column] = sum of op(b) over `inner`
};

// d = epilogue(op(a) op(b)) for each matrix of the batch. Operands are exact, products are accumulated in fp32.
struct GemmDesc {
  int64_t rows = 0;     // of op(a) and d
  int64_t columns = 0;  // of op(b) and d
  int64_t inner = 0;
  int64_t batch = 1;
  GemmMatrix a, b, d;  // d is never transposed; a and b have one dtype, or are two 8-bit ones
  // f32 operands are rounded to TF32.
  bool tf32 = false;
  // d += product.
  bool accumulate = false;
  // d = epilogue(product + c), where c is laid out as d is, of its dtype, and elsewhere. Not with accumulate.
  bool added = false;
  // The product is multiplied by *a_scale * *b_scale of GemmArgs: what the codes of 8-bit operands stand for.
  bool scaled = false;
  // Other than kNone, for one matrix alone (batch 1). Bias, aux and bias gradient have d's dtype; aux is laid out as d.
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  // What every pointer to a, b, d and aux is a multiple of; where several products share tensors, what their places in
  // these leave of it. A library passes over algorithms that need more.
  int64_t alignment_bytes = kTensorAlignment;
};

// Device memory. What the desc does not ask for stays null.
struct GemmArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  void* bias_gradient = nullptr;
  const float* a_scale = nullptr;  // multiples of 16 bytes
  const float* b_scale = nullptr;
  void* workspace = nullptr;  // of workspace_bytes(), aligned to kTensorAlignment
};

// The most memory that a product asks for, so that long sums of few results can be cut up: NVIDIA's advice for Hopper,
// and a quarter of it for devices with less memory to move.
constexpr int64_t LargestGemmWorkspace(const DeviceProperties& properties) {
  return properties.major >= 9 ? int64_t{32} << 20 : int64_t{8} << 20;
}

// Made for one description; used by one thread, as the context is.
class Gemm {
 public:
  // Asks no driver. `name` is the node's, for errors. INVALID_ARGUMENT for what no product is; UNIMPLEMENTED, saying
  // why, for what the device's matrix units cannot do (CheckGemm).
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(std::string name, const GemmDesc& desc, Context* context);
  virtual ~Gemm() = default;

  virtual int64_t workspace_bytes() const = 0;
  // Enqueues on the context's stream. The first call settles the algorithm: what Context::autotune() remembers, else
  // what it measures now, waiting for the stream, else (no autotune, or a capture) the library's first guess.
  virtual absl::Status Run(const GemmArgs& args) = 0;
};

// Where `dtype` can be multiplied as 8-bit operands are: both laid out with `inner` contiguous (a not transposed, b
// transposed), and inner and columns multiples of kFloat8Multiple.
inline constexpr int64_t kFloat8Multiple = 16;

// Whether an epilogue writes or reads aux, reads a bias, writes a bias gradient.
constexpr bool HasAux(GemmEpilogue e) {
  return e == GemmEpilogue::kBiasGeluAux || e == GemmEpilogue::kGeluGrad || e == GemmEpilogue::kGeluGradBiasGradient;
}
constexpr bool HasBias(GemmEpilogue e) {
  return e == GemmEpilogue::kBias || e == GemmEpilogue::kBiasGelu || e == GemmEpilogue::kBiasGeluAux;
}
constexpr bool HasBiasGradient(GemmEpilogue e) {
  return e == GemmEpilogue::kGeluGradBiasGradient || e == GemmEpilogue::kBiasGradient;
}

// The library and its version, for AutotuneKey.
std::string GemmLibrary();
// What Create refuses, whichever library is behind it.
absl::Status CheckGemm(const std::string& name, const GemmDesc& desc, const DeviceProperties& properties);
// What Gemm::workspace_bytes() is: a multiple of the result, for partial sums, up to LargestGemmWorkspace().
int64_t GemmWorkspaceBytes(const GemmDesc& desc, const DeviceProperties& properties);
// Names all of `desc`, for AutotuneCache.
std::string GemmKey(const GemmDesc& desc);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_GEMM_H_
