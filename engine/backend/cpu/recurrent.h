// Internal to the CPU backend: what the kernels of lstm and gru share. Samples are cut into parts, one a thread; a part
// walks through all steps by itself, so that no step waits for another thread.
#ifndef AMPD_ENGINE_BACKEND_CPU_RECURRENT_H_
#define AMPD_ENGINE_BACKEND_CPU_RECURRENT_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/step_gemm.h"

namespace ampd::cpu {

// Extents and the way through time of one node.
struct Sequence {
  int64_t batch = 0, time = 0, hidden = 0;
  bool reverse = false;
  // Round what products read to 10 fraction bits.
  bool tf32 = false;
  int parts = 1;
  DType dtype = DType::kF32;
  // In which products read their operands; differs from dtype for f16, and for bf16 where the processor lacks it.
  dnnl::memory::data_type compute = dnnl::memory::data_type::f32;

  // `flops` of the node decide on the number of parts.
  Sequence(const runtime::NodeDesc& desc, const Shape& steps, int64_t hidden, double flops,
           dnnl::memory::data_type compute);

  int64_t begin(int part) const { return PartBegin(batch, 1, part, parts); }
  int64_t rows(int part) const { return begin(part + 1) - begin(part); }
  // Whether operands are converted before a product.
  bool converts() const { return tf32 || (compute == dnnl::memory::data_type::f32) != (dtype == DType::kF32); }
  int64_t compute_bytes() const { return compute == dnnl::memory::data_type::f32 ? 4 : 2; }
  // Time of the `step`th step.
  int64_t at(int64_t step) const { return reverse ? time - 1 - step : step; }
  // Time before `t` in the order of steps.
  int64_t before(int64_t t) const { return reverse ? t + 1 : t - 1; }
  // The first time of a sample, which starts from the initial state.
  bool first(int64_t t, int64_t length) const { return reverse ? t == length - 1 : t == 0; }
};

// A sample's length, at most `time`; a negative one is 0.
inline int64_t LengthOf(const TensorView* lengths, int64_t sample, int64_t time) {
  return lengths == nullptr ? time : std::clamp<int64_t>(lengths->as<int32_t>()[sample], 0, time);
}

// A matrix that every part multiplies with. Rows of `a` are a part's samples, `repeat` each.
class SequenceProduct {
 public:
  // May throw dnnl::error.
  SequenceProduct(const Sequence& sequence, int64_t repeat, StepGemmShape shape, WorkspaceLayout* layout);

  // `b` in the compute type.
  absl::Status Pack(const runtime::KernelArgs& args, int part, const void* b);
  absl::Status Run(const runtime::KernelArgs& args, int part, const void* a, float* c);

 private:
  struct Part {
    std::unique_ptr<StepGemm> gemm;
    int64_t packed_at = 0;
    int64_t scratch_at = 0;
  };
  std::vector<Part> parts_;
};

// Operands on their way to a product: converted where the sequence wants it, else as they are.
class SequenceOperand {
 public:
  // Room for `elements` in all; `rows`: for PutRow, whether or not anything is converted.
  SequenceOperand(const Sequence& sequence, int64_t elements, WorkspaceLayout* layout, bool rows = false);

  // `n` elements at `stored` (of the sequence's dtype), whose place among all begins at `first`.
  const void* Ready(const runtime::KernelArgs& args, const void* stored, int64_t first, int64_t n) const;
  // Copies a row into place, converting it; operands made of rows that lie apart.
  void PutRow(const runtime::KernelArgs& args, const void* stored, int64_t first, int64_t n) const;
  void ClearRow(const runtime::KernelArgs& args, int64_t first, int64_t n) const;
  const void* At(const runtime::KernelArgs& args, int64_t first) const {
    return WorkspaceAt<char>(args, at_) + first * bytes_;
  }

 private:
  void Convert(const void* stored, int64_t n, void* to) const;

  DType dtype_;
  bool converts_, tf32_;
  int64_t bytes_;
  int64_t at_ = 0;
};

// Element `first` of a tensor.
inline void* ElementAt(const TensorView& tensor, int64_t first) {
  return tensor.as<char>() + first * SizeOf(tensor.dtype);
}

// Zeroes `n` elements from `first` on.
inline void ClearElements(const TensorView& tensor, int64_t first, int64_t n) {
  std::memset(ElementAt(tensor, first), 0, static_cast<size_t>(n * SizeOf(tensor.dtype)));
}

// The same elements of two tensors of one dtype.
inline void CopyElements(const TensorView& from, int64_t from_first, int64_t n, const TensorView& to,
                         int64_t to_first) {
  std::memcpy(ElementAt(to, to_first), ElementAt(from, from_first), static_cast<size_t>(n * SizeOf(from.dtype)));
}

// Runs part(p) for every part on its own thread, each with oneDNN limited to it; the first error by part.
absl::Status RunParts(const Sequence& sequence, std::vector<absl::Status>* statuses,
                      const std::function<absl::Status(int part)>& part);

// `make` with bf16 operands for bf16 nodes where the processor has products of them, else with f32. INTERNAL, naming
// the node, when oneDNN has neither.
absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareSequence(
    const runtime::NodeDesc& desc,
    const std::function<std::unique_ptr<runtime::Kernel>(dnnl::memory::data_type compute)>& make);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_RECURRENT_H_
