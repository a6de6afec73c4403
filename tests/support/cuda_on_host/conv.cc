// Convolutions by plain loops, in the place of cuDNN: what it computes runs when the stream comes to it.
#include "engine/backend/cuda/conv.h"

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

using Extents = std::array<int64_t, 4>;

int64_t Size(const Extents& e) { return e[0] * e[1] * e[2] * e[3]; }
int64_t At(const Extents& e, int64_t i, int64_t j, int64_t k, int64_t l) {
  return ((i * e[1] + j) * e[2] + k) * e[3] + l;
}

std::vector<float> Load(DType dtype, const void* from, int64_t size, bool tf32) {
  std::vector<float> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    float& value = values[static_cast<size_t>(i)];
    if (dtype == DType::kF32) value = static_cast<const float*>(from)[i];
    if (dtype == DType::kF16) value = ToFloat(static_cast<const Half*>(from)[i]);
    if (dtype == DType::kBF16) value = ToFloat(static_cast<const BFloat16*>(from)[i]);
    if (tf32) value = RoundToTf32(value);
  }
  return values;
}

void Store(DType dtype, const std::vector<float>& values, void* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) static_cast<float*>(to)[i] = values[i];
    if (dtype == DType::kF16) static_cast<Half*>(to)[i] = ToHalf(values[i]);
    if (dtype == DType::kBF16) static_cast<BFloat16*>(to)[i] = ToBFloat16(values[i]);
  }
}

// visit(element of the image, of the filter, of the output) for every product of the convolution.
template <typename Visit>
void ForEachProduct(const ConvDesc& d, const Visit& visit) {
  const int64_t filters = d.filter[0] / d.groups;
  for (int64_t n = 0; n < d.output[0]; ++n)
    for (int64_t p = 0; p < d.output[1]; ++p)
      for (int64_t q = 0; q < d.output[2]; ++q)
        for (int64_t r = 0; r < d.filter[1]; ++r)
          for (int64_t s = 0; s < d.filter[2]; ++s) {
            const int64_t h = p * d.strides[0] - d.before[0] + r * d.dilations[0];
            const int64_t w = q * d.strides[1] - d.before[1] + s * d.dilations[1];
            if (h < 0 || h >= d.image[1] || w < 0 || w >= d.image[2]) continue;
            for (int64_t k = 0; k < d.filter[0]; ++k)
              for (int64_t c = 0; c < d.filter[3]; ++c)
                visit(At(d.image, n, h, w, k / filters * d.filter[3] + c), At(d.filter, k, r, s, c),
                      At(d.output, n, p, q, k));
          }
}

const Extents& ResultOf(const ConvDesc& d) {
  if (d.kind == ConvKind::kForward) return d.output;
  return d.kind == ConvKind::kGradInput ? d.image : d.filter;
}

void Convolve(const ConvDesc& d, const ConvArgs& args) {
  const Extents& a_extents = d.kind == ConvKind::kForward ? d.image : d.output;
  const Extents& b_extents = d.kind == ConvKind::kGradFilter ? d.image : d.filter;
  const std::vector<float> a = Load(d.operands, args.a, Size(a_extents), d.tf32);
  const std::vector<float> b = Load(d.operands, args.b, Size(b_extents), d.tf32);
  std::vector<float> result(static_cast<size_t>(Size(ResultOf(d))));
  const float *x = a.data(), *y = b.data();
  float* sum = result.data();
  if (d.kind == ConvKind::kForward) {
    ForEachProduct(d, [=](int64_t i, int64_t f, int64_t o) { sum[o] += x[i] * y[f]; });
  } else if (d.kind == ConvKind::kGradInput) {
    ForEachProduct(d, [=](int64_t i, int64_t f, int64_t o) { sum[i] += x[o] * y[f]; });
  } else {
    ForEachProduct(d, [=](int64_t i, int64_t f, int64_t o) { sum[f] += x[o] * y[i]; });
  }
  if (d.fusion != ConvFusion::kNone) {
    const std::vector<float> bias = Load(d.operands, args.bias, d.filter[0], false);
    for (size_t i = 0; i < result.size(); ++i) {
      const float value = result[i] + bias[i % bias.size()];
      result[i] = d.fusion == ConvFusion::kBiasRelu && value < 0 ? 0 : value;  // a NaN stays
    }
  }
  Store(d.result, result, args.result);
}

class LoopConv : public Conv {
 public:
  LoopConv(std::string name, const ConvDesc& desc, Context* context)
      : name_(std::move(name)), desc_(desc), context_(context) {}

  // Some, so that a kernel that forgets to give it is found out.
  int64_t workspace_bytes() const override { return kTensorAlignment; }
  std::string algorithm() const override { return "loops"; }

  absl::Status Run(const ConvArgs& args) override {
    AMPD_RETURN_IF_ERROR(cuda_on_host::CheckWorkspace(absl::StrCat("[conv] ", name_), args.workspace));
    for (const void* p : {args.a, args.b, const_cast<const void*>(args.result)}) {
      if (p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0) continue;
      return absl::InternalError(absl::StrCat("[conv] ", name_, ": a pointer is missing or not aligned"));
    }
    return ToStatus(cuda_on_host::Enqueue(context_->stream(), "conv",
                                          [desc = desc_, args] {
                                            std::memset(args.workspace, 0xff, kTensorAlignment);
                                            Convolve(desc, args);
                                          }),
                    name_);
  }

 private:
  const std::string name_;
  const ConvDesc desc_;
  Context* const context_;
};

}  // namespace

std::string ConvLibrary() { return "loops"; }
std::string ConvLibraryName() { return "loops 1.0"; }
std::string ConvLibraryFolder() { return ""; }

absl::StatusOr<std::unique_ptr<Conv>> Conv::Create(std::string name, const ConvDesc& desc, Context* context) {
  if (desc.fusion != ConvFusion::kNone && desc.fusion != ConvFusion::kBias && desc.fusion != ConvFusion::kBiasRelu) {
    return absl::UnimplementedError(absl::StrCat("[conv] ", name, ": nothing is fused into ", ConvKey(desc)));
  }
  return std::unique_ptr<Conv>(std::make_unique<LoopConv>(std::move(name), desc, context));
}

}  // namespace ampd::cuda
