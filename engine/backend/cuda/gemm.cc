#include "engine/backend/cuda/gemm.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

// What cuBLASLt takes of an extent or a batch.
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
// Partial sums of one result that a workspace has room for.
constexpr int64_t kPartialSums = 64;

absl::Status CheckMatrix(const std::string& what, const GemmMatrix& m, int64_t rows, int64_t columns) {
  const int64_t row = m.transposed ? rows : columns;
  if (m.leading < row || m.leading > std::numeric_limits<int64_t>::max() / 2 || m.batch_stride < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": rows of ", row, " elements lie ", m.leading, " apart, matrices ", m.batch_stride));
  }
  return absl::OkStatus();
}

absl::Status CheckFloat8(const std::string& what, const GemmDesc& d, const DeviceProperties& properties) {
  if (!properties.has_fp8()) {
    return absl::UnimplementedError(absl::StrCat(what, ": 8-bit operands need compute capability 8.9, ",
                                                 properties.name, " has ", properties.major, ".", properties.minor));
  }
  if (d.a.dtype == DType::kF8E5M2 && d.b.dtype == DType::kF8E5M2) {
    return absl::UnimplementedError(absl::StrCat(what, ": two operands of f8e5m2"));
  }
  if (d.a.transposed || !d.b.transposed || d.inner % kFloat8Multiple != 0 || d.columns % kFloat8Multiple != 0 ||
      d.a.leading % kFloat8Multiple != 0 || d.b.leading % kFloat8Multiple != 0) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": 8-bit operands need `inner` contiguous in both, and multiples of ", kFloat8Multiple,
                     " as inner and columns; inner ", d.inner, ", columns ", d.columns, d.a.transposed ? ", a" : "",
                     d.b.transposed ? "" : ", b", " not so laid out"));
  }
  return absl::OkStatus();
}

absl::Status CheckDTypes(const std::string& what, const GemmDesc& d, const DeviceProperties& properties) {
  const DType a = d.a.dtype, b = d.b.dtype, y = d.d.dtype;
  const bool is_f8 = IsF8(a) && IsF8(b);
  const bool is_data = a == b && (a == DType::kF32 || a == DType::kF16 || a == DType::kBF16);
  const bool is_result = y == DType::kF32 || (y == a && is_data) || (is_f8 && (y == DType::kF16 || y == DType::kBF16));
  if (!(is_f8 || is_data) || !is_result || (d.tf32 && a != DType::kF32) || (d.scaled && !is_f8)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": no product of ", DTypeName(a), " and ", DTypeName(b),
                                                   " in ", DTypeName(y), d.tf32 ? ", tf32" : "",
                                                   d.scaled ? ", scaled" : ""));
  }
  if ((a == DType::kBF16 || d.tf32) && !properties.has_bf16()) {
    return absl::UnimplementedError(absl::StrCat(what, ": ", d.tf32 ? "tf32" : "bf16",
                                                 " needs compute capability 8.0, ", properties.name, " has ",
                                                 properties.major, ".", properties.minor));
  }
  return is_f8 ? CheckFloat8(what, d, properties) : absl::OkStatus();
}

absl::Status CheckEpilogue(const std::string& what, const GemmDesc& d) {
  if (d.added && d.accumulate) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": d is added to (accumulate), and so is c (added)"));
  }
  if (d.epilogue == GemmEpilogue::kNone) return absl::OkStatus();
  if (d.batch != 1) return absl::InvalidArgumentError(absl::StrCat(what, ": an epilogue for a batch of ", d.batch));
  if ((HasAux(d.epilogue) || d.epilogue == GemmEpilogue::kBiasGelu) &&
      (d.d.leading % 8 != 0 || d.accumulate || d.added)) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": gelu needs rows that lie a multiple of 8 apart, not ", d.d.leading, ", and no sum"));
  }
  return absl::OkStatus();
}

// In keys that later builds read.
const char* EpilogueName(GemmEpilogue epilogue) {
  constexpr const char* kNames[] = {
      "none", "bias", "bias_gelu", "bias_gelu_aux", "gelu_grad", "gelu_grad_bias_gradient", "bias_gradient"};
  return kNames[static_cast<int>(epilogue)];
}

}  // namespace

absl::Status CheckGemm(const std::string& name, const GemmDesc& desc, const DeviceProperties& properties) {
  const std::string what = absl::StrCat("[gemm] ", name);
  for (int64_t extent : {desc.rows, desc.columns, desc.inner, desc.batch}) {
    if (extent >= 1 && extent <= kMaxExtent) continue;
    return absl::InvalidArgumentError(absl::StrCat(what, ": rows ", desc.rows, ", columns ", desc.columns, ", inner ",
                                                   desc.inner, ", batch ", desc.batch, ": each must be 1 to ",
                                                   kMaxExtent));
  }
  AMPD_RETURN_IF_ERROR(CheckMatrix(absl::StrCat(what, ", a"), desc.a, desc.rows, desc.inner));
  AMPD_RETURN_IF_ERROR(CheckMatrix(absl::StrCat(what, ", b"), desc.b, desc.inner, desc.columns));
  AMPD_RETURN_IF_ERROR(CheckMatrix(absl::StrCat(what, ", d"), desc.d, desc.rows, desc.columns));
  const bool overlaps = desc.batch > 1 && desc.d.batch_stride / desc.d.leading < desc.rows;
  if (desc.d.transposed || overlaps) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": d is transposed, or its matrices overlap"));
  }
  AMPD_RETURN_IF_ERROR(CheckDTypes(what, desc, properties));
  return CheckEpilogue(what, desc);
}

int64_t GemmWorkspaceBytes(const GemmDesc& desc, const DeviceProperties& properties) {
  const int64_t most = LargestGemmWorkspace(properties);
  const double bytes = static_cast<double>(desc.rows) * static_cast<double>(desc.columns) *
                       static_cast<double>(desc.batch) * sizeof(float) * kPartialSums;
  return AlignUp(static_cast<int64_t>(std::min(bytes, static_cast<double>(most))));
}

std::string GemmKey(const GemmDesc& desc) {
  const auto matrix = [](const GemmMatrix& m) {
    return absl::StrCat(DTypeName(m.dtype), m.transposed ? " t " : " n ", m.leading, " ", m.batch_stride);
  };
  return absl::StrCat("gemm ", desc.rows, "x", desc.columns, "x", desc.inner, " batch ", desc.batch, "|",
                      matrix(desc.a), "|", matrix(desc.b), "|", matrix(desc.d), desc.tf32 ? "|tf32" : "",
                      desc.accumulate ? "|accumulate" : "", desc.added ? "|added" : "", desc.scaled ? "|scaled" : "",
                      "|epilogue ", EpilogueName(desc.epilogue), "|align ", desc.alignment_bytes);
}

}  // namespace ampd::cuda
