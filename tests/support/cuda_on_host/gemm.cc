// Products by plain loops, in the place of cuBLASLt: the same descriptions are refused, the same memory is asked for,
// and what it computes runs when the stream comes to it.
#include "engine/backend/cuda/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/float8.h"
#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/cuda_on_host/workspace.h"

namespace ampd::cuda {
namespace {

template <typename T>
void Widen(const void* from, int64_t at, float* to) {
  *to = ToFloat(static_cast<const T*>(from)[at]);
}

float Load(DType dtype, const void* from, int64_t at) {
  float value = 0;
  if (dtype == DType::kF32) value = static_cast<const float*>(from)[at];
  if (dtype == DType::kF16) Widen<Half>(from, at, &value);
  if (dtype == DType::kBF16) Widen<BFloat16>(from, at, &value);
  if (dtype == DType::kF8E4M3) Widen<Float8E4M3>(from, at, &value);
  if (dtype == DType::kF8E5M2) Widen<Float8E5M2>(from, at, &value);
  return value;
}

void Store(DType dtype, float value, void* to, int64_t at) {
  if (dtype == DType::kF32) static_cast<float*>(to)[at] = value;
  if (dtype == DType::kF16) static_cast<Half*>(to)[at] = ToHalf(value);
  if (dtype == DType::kBF16) static_cast<BFloat16*>(to)[at] = ToBFloat16(value);
}

// op(m) of [rows, columns], as f32 without gaps.
std::vector<float> Operand(const GemmMatrix& m, const void* data, int64_t batch, int64_t rows, int64_t columns,
                           bool tf32) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  const int64_t row = m.transposed ? 1 : m.leading, column = m.transposed ? m.leading : 1;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = Load(m.dtype, data, batch * m.batch_stride + i * row + j * column);
      values[static_cast<size_t>(i * columns + j)] = tf32 ? RoundToTf32(value) : value;
    }
  }
  return values;
}

constexpr float kRootTwoOverPi = 0.7978845608f, kCube = 0.044715f;

// x sigmoid(2 u), as docs/ops.md has gelu's tanh form.
float Sigmoid2u(float x) { return 1 / (1 + std::exp(-2 * kRootTwoOverPi * (x + kCube * x * x * x))); }
float Gelu(float x) { return x * Sigmoid2u(x); }
float GeluSlope(float x) {
  const float s = Sigmoid2u(x);
  return s + x * s * (1 - s) * 2 * kRootTwoOverPi * (1 + 3 * kCube * x * x);
}

class LoopGemm : public Gemm {
 public:
  LoopGemm(std::string name, const GemmDesc& desc, Context* context)
      : name_(std::move(name)), desc_(desc), context_(context) {}

  int64_t workspace_bytes() const override { return GemmWorkspaceBytes(desc_, context_->properties()); }

  absl::Status Run(const GemmArgs& args) override {
    AMPD_RETURN_IF_ERROR(CheckArgs(args));
    return ToStatus(cuda_on_host::Enqueue(context_->stream(), "gemm",
                                          [desc = desc_, args, bytes = workspace_bytes()] {
                                            Scribble(static_cast<char*>(args.workspace), bytes);
                                            for (int64_t i = 0; i < desc.batch; ++i) Multiply(desc, args, i);
                                          }),
                    name_);
  }

 private:
  absl::Status CheckArgs(const GemmArgs& args) const {
    AMPD_RETURN_IF_ERROR(cuda_on_host::CheckWorkspace(absl::StrCat("[gemm] ", name_), args.workspace));
    const bool wants_bias = HasBias(desc_.epilogue), wants_aux = HasAux(desc_.epilogue);
    const bool makes_bias = HasBiasGradient(desc_.epilogue);
    bool fits = wants_bias == (args.bias != nullptr) && wants_aux == (args.aux != nullptr) &&
                desc_.added == (args.c != nullptr) && makes_bias == (args.bias_gradient != nullptr) &&
                desc_.scaled == (args.a_scale != nullptr) && desc_.scaled == (args.b_scale != nullptr);
    for (const void* p : {args.a, args.b, const_cast<const void*>(args.d)}) fits &= p != nullptr;
    for (const void* p : {args.a, args.b, args.c, const_cast<const void*>(args.d), const_cast<const void*>(args.aux)}) {
      fits &= reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(desc_.alignment_bytes) == 0;
    }
    if (fits) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("[gemm] ", name_, ": pointers that the description does not fit"));
  }

  // A library leaves anything in its workspace.
  static void Scribble(char* workspace, int64_t bytes) {
    const int64_t edge = std::min<int64_t>(bytes, 4096);
    std::memset(workspace, 0xff, static_cast<size_t>(edge));
    std::memset(workspace + bytes - edge, 0xff, static_cast<size_t>(edge));
  }

  static void Multiply(const GemmDesc& d, const GemmArgs& args, int64_t batch) {
    const std::vector<float> a = Operand(d.a, args.a, batch, d.rows, d.inner, d.tf32);
    const std::vector<float> b = Operand(d.b, args.b, batch, d.inner, d.columns, d.tf32);
    const float scale = d.scaled ? *args.a_scale * *args.b_scale : 1.0f;
    std::vector<float> row(static_cast<size_t>(d.columns)), sums(static_cast<size_t>(d.columns));
    for (int64_t i = 0; i < d.rows; ++i) {
      std::fill(row.begin(), row.end(), 0.0f);
      for (int64_t k = 0; k < d.inner; ++k) {
        const float x = a[static_cast<size_t>(i * d.inner + k)];
        const float* y = b.data() + k * d.columns;
        for (int64_t j = 0; j < d.columns; ++j) row[static_cast<size_t>(j)] += x * y[j];
      }
      for (int64_t j = 0; j < d.columns; ++j) {
        const int64_t at = batch * d.d.batch_stride + i * d.d.leading + j;
        const float value = Finish(d, args, row[static_cast<size_t>(j)] * scale, j, at);
        Store(d.d.dtype, value, args.d, at);
        sums[static_cast<size_t>(j)] += value;
      }
    }
    if (d.epilogue == GemmEpilogue::kBiasGradient) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (size_t i = 0; i < b.size(); ++i) sums[i % sums.size()] += b[i];
    }
    if (args.bias_gradient == nullptr) return;
    for (int64_t j = 0; j < d.columns; ++j) Store(d.d.dtype, sums[static_cast<size_t>(j)], args.bias_gradient, j);
  }

  static float Finish(const GemmDesc& d, const GemmArgs& args, float value, int64_t column, int64_t at) {
    if (d.accumulate) value += Load(d.d.dtype, args.d, at);
    if (d.added) value += Load(d.d.dtype, args.c, at);
    if (args.bias != nullptr) value += Load(d.d.dtype, args.bias, column);
    if (d.epilogue == GemmEpilogue::kBiasGeluAux) Store(d.d.dtype, value, args.aux, at);
    if (d.epilogue == GemmEpilogue::kBiasGeluAux || d.epilogue == GemmEpilogue::kBiasGelu) return Gelu(value);
    return HasAux(d.epilogue) ? value * GeluSlope(Load(d.d.dtype, args.aux, at)) : value;
  }

  const std::string name_;
  const GemmDesc desc_;
  Context* const context_;
};

}  // namespace

std::string GemmLibrary() { return "loops"; }

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::string name, const GemmDesc& desc, Context* context) {
  AMPD_RETURN_IF_ERROR(CheckGemm(name, desc, context->properties()));
  return std::unique_ptr<Gemm>(std::make_unique<LoopGemm>(std::move(name), desc, context));
}

}  // namespace ampd::cuda
