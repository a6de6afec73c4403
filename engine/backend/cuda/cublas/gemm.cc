#include "engine/backend/cuda/gemm.h"

#include <cublasLt.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

// Candidates that cuBLASLt's heuristic is asked for, best guess first.
constexpr int kCandidates = 16;

absl::StatusCode CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return absl::StatusCode::kUnavailable;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status LtStatus(const Context& context, cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return DeviceFailureOr(
      context, absl::Status(CodeOf(status), absl::StrCat("[gemm] ", what, ": ", cublasLtGetStatusName(status), ": ",
                                                         cublasLtGetStatusString(status))));
}

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* p) const {
    static_cast<void>(kDestroy(p));
  }
};
template <typename Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

using MatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

absl::StatusOr<cublasLtHandle_t> Handle(Context* context) {
  std::shared_ptr<void>& library = context->library(Library::kBlas);
  if (library == nullptr) {
    cublasLtHandle_t handle = nullptr;
    AMPD_RETURN_IF_ERROR(LtStatus(*context, cublasLtCreate(&handle), "cuBLASLt"));
    library = std::shared_ptr<void>(
        handle, [](void* h) { static_cast<void>(cublasLtDestroy(static_cast<cublasLtHandle_t>(h))); });
  }
  return static_cast<cublasLtHandle_t>(library.get());
}

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t EpilogueOf(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case GemmEpilogue::kBiasGeluAux:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kGeluGradBiasGradient:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    // Its A is our b.
    case GemmEpilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADA;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// Frees at the end what it got; null where there was no memory.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (cudaMalloc(&memory_, bytes) == cudaSuccess) return;
    memory_ = nullptr;
    static_cast<void>(cudaGetLastError());  // it was no failure of what follows
  }
  ~Scratch() {
    if (memory_ != nullptr) static_cast<void>(cudaFree(memory_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

// cuBLASLt's matrices are column-major: what is [rows, columns] to us is its transpose to it. So it computes
// d' = b' a', where an apostrophe costs nothing: its A is our b, its B our a, its m our columns, its n our rows.
class LtGemm : public Gemm {
 public:
  LtGemm(std::string name, const GemmDesc& desc, Context* context)
      : name_(std::move(name)),
        desc_(desc),
        context_(context),
        workspace_bytes_(GemmWorkspaceBytes(desc, context->properties())) {}

  absl::Status Init() {
    cublasLtMatmulDesc_t op = nullptr;
    const cublasComputeType_t compute = desc_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    AMPD_RETURN_IF_ERROR(Check(cublasLtMatmulDescCreate(&op, compute, CUDA_R_32F)));
    op_.reset(op);
    AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, desc_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, desc_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (desc_.epilogue != GemmEpilogue::kNone) {
      AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(desc_.epilogue)));
    }
    if (HasVector()) AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(desc_.d.dtype)));
    if (HasAux(desc_.epilogue)) AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, desc_.d.leading));
    AMPD_RETURN_IF_ERROR(MakeLayout(desc_.b, desc_.inner, desc_.columns, &a_));
    AMPD_RETURN_IF_ERROR(MakeLayout(desc_.a, desc_.rows, desc_.inner, &b_));
    return MakeLayout(desc_.d, desc_.rows, desc_.columns, &d_);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Run(const GemmArgs& args) override {
    AMPD_RETURN_IF_ERROR(SetPointers(args));
    if (!chosen_) AMPD_RETURN_IF_ERROR(Choose(args));
    return Multiply(algorithm_, args, args.d);
  }

 private:
  absl::Status Check(cublasStatus_t status) const {
    return status == CUBLAS_STATUS_SUCCESS ? absl::OkStatus() : LtStatus(*context_, status, name_);
  }
  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return Check(cublasLtMatmulDescSetAttribute(op_.get(), attribute, &value, sizeof(value)));
  }
  bool HasVector() const { return HasBias(desc_.epilogue) || HasBiasGradient(desc_.epilogue); }

  // op(m) is [rows, columns].
  absl::Status MakeLayout(const GemmMatrix& m, int64_t rows, int64_t columns, Layout* layout) const {
    if (m.transposed) std::swap(rows, columns);
    cublasLtMatrixLayout_t raw = nullptr;
    AMPD_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&raw, TypeOf(m.dtype), static_cast<uint64_t>(columns),
                                                          static_cast<uint64_t>(rows), m.leading)));
    layout->reset(raw);
    if (desc_.batch == 1) return absl::OkStatus();
    const auto count = static_cast<int32_t>(desc_.batch);
    AMPD_RETURN_IF_ERROR(
        Check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count))));
    return Check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.batch_stride,
                                                  sizeof(m.batch_stride)));
  }

  // Before an algorithm is chosen, too: the heuristic looks at their alignment.
  absl::Status SetPointers(const GemmArgs& args) {
    if (HasVector()) {
      const void* bias = args.bias != nullptr ? args.bias : args.bias_gradient;
      AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    }
    if (HasAux(desc_.epilogue)) AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.aux));
    if (!desc_.scaled) return absl::OkStatus();
    AMPD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_scale));
    return Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_scale);
  }

  absl::Status Multiply(const cublasLtMatmulAlgo_t& algorithm, const GemmArgs& args, void* d) {
    AMPD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, Handle(context_));
    const float one = 1, beta = desc_.accumulate || desc_.added ? 1 : 0;
    const void* const c = desc_.added ? args.c : d;
    return Check(cublasLtMatmul(handle, op_.get(), &one, args.b, a_.get(), args.a, b_.get(), &beta, c, d_.get(), d,
                                d_.get(), &algorithm, args.workspace, static_cast<size_t>(workspace_bytes_),
                                context_->stream()));
  }

  absl::Status Choose(const GemmArgs& args) {
    const std::string key = AutotuneKey(*context_, GemmLibrary(), GemmKey(desc_));
    if (!Recall(key)) {
      AMPD_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates, Candidates());
      AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(*context_));
      algorithm_ = candidates[0];
      if (may_measure) AMPD_RETURN_IF_ERROR(Measure(candidates, args, key));
    }
    chosen_ = true;
    return absl::OkStatus();
  }

  // Whether the cache holds an algorithm that this cuBLASLt accepts for this product.
  bool Recall(const std::string& key) {
    if (context_->autotune() == nullptr) return false;
    const absl::optional<std::string> value = context_->autotune()->Find(key);
    if (!value || value->size() != sizeof(algorithm_)) return false;
    const absl::StatusOr<cublasLtHandle_t> handle = Handle(context_);
    cublasLtMatmulAlgo_t algorithm;
    cublasLtMatmulHeuristicResult_t result = {};
    std::memcpy(&algorithm, value->data(), sizeof(algorithm));
    if (!handle.ok() || cublasLtMatmulAlgoCheck(*handle, op_.get(), a_.get(), b_.get(), d_.get(), d_.get(), &algorithm,
                                                &result) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    if (result.workspaceSize > static_cast<size_t>(workspace_bytes_)) return false;
    algorithm_ = algorithm;
    return true;
  }

  absl::StatusOr<Preference> MakePreference() const {
    cublasLtMatmulPreference_t raw = nullptr;
    AMPD_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&raw)));
    Preference preference(raw);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return Check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof(value)));
    };
    AMPD_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_)));
    // Parts of a sum that is cut up meet in fp32: not in d, where they would be rounded to its dtype.
    AMPD_RETURN_IF_ERROR(
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
    // Where nothing is said cuBLASLt counts on 256.
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      AMPD_RETURN_IF_ERROR(set(attribute, static_cast<uint32_t>(desc_.alignment_bytes)));
    }
    return preference;
  }

  // At least one.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates() const {
    AMPD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, Handle(context_));
    AMPD_ASSIGN_OR_RETURN(const Preference preference, MakePreference());
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, op_.get(), a_.get(), b_.get(), d_.get(), d_.get(), preference.get(),
                                       kCandidates, results.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) AMPD_RETURN_IF_ERROR(Check(status));
    std::vector<cublasLtMatmulAlgo_t> candidates;
    for (int i = 0; i < count; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back(results[i].algo);
    }
    if (!candidates.empty()) return candidates;
    return absl::UnimplementedError(
        absl::StrCat("[gemm] ", name_, ": cuBLASLt ", cublasLtGetVersion(), " cannot do ", GemmKey(desc_)));
  }

  // Sums would grow with every run: those are measured on another d, if there is memory for one.
  absl::Status Measure(const std::vector<cublasLtMatmulAlgo_t>& candidates, const GemmArgs& args,
                       const std::string& key) {
    const int64_t d_elements = (desc_.batch - 1) * desc_.d.batch_stride + desc_.rows * desc_.d.leading;
    const Scratch scratch(desc_.accumulate ? static_cast<size_t>(d_elements * SizeOf(desc_.d.dtype)) : 1);
    if (desc_.accumulate && scratch.get() == nullptr) return absl::OkStatus();
    void* d = desc_.accumulate ? scratch.get() : args.d;
    const auto run = [&](int i) { return Multiply(candidates[static_cast<size_t>(i)], args, d); };
    AMPD_ASSIGN_OR_RETURN(const int fastest, FastestOf(*context_, static_cast<int>(candidates.size()), run));
    algorithm_ = candidates[static_cast<size_t>(fastest)];
    std::string value(sizeof(algorithm_), '\0');
    std::memcpy(value.data(), &algorithm_, sizeof(algorithm_));
    context_->autotune()->Put(key, value);
    return absl::OkStatus();
  }

  const std::string name_;
  const GemmDesc desc_;
  Context* const context_;
  const int64_t workspace_bytes_;
  MatmulDesc op_;
  Layout a_, b_, d_;
  bool chosen_ = false;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace

std::string GemmLibrary() { return absl::StrCat("cublasLt ", cublasLtGetVersion()); }

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::string name, const GemmDesc& desc, Context* context) {
  AMPD_RETURN_IF_ERROR(CheckGemm(name, desc, context->properties()));
  auto gemm = std::make_unique<LtGemm>(std::move(name), desc, context);
  AMPD_RETURN_IF_ERROR(gemm->Init());
  return std::unique_ptr<Gemm>(std::move(gemm));
}

}  // namespace ampd::cuda
