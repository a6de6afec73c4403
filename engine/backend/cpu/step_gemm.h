// Internal to the CPU backend: a small matrix product, prepared once and run once a time step of a recurrent layer. It
// runs on the thread that calls it, so that threads can walk through their own samples' steps without waiting for each
// other.
#ifndef AMPD_ENGINE_BACKEND_CPU_STEP_GEMM_H_
#define AMPD_ENGINE_BACKEND_CPU_STEP_GEMM_H_

#include <oneapi/dnnl/dnnl.hpp>

#include "absl/status/status.h"
#include "engine/backend/cpu/onednn_kernel.h"

namespace ampd::cpu {

// c [rows, columns] f32 = a [rows, inner] b [inner, columns], accumulated in fp32.
struct StepGemmShape {
  int64_t rows = 0, inner = 0, columns = 0;
  // b is stored [columns, inner].
  bool b_transposed = false;
  // Elements from one row of c to the next; 0: columns.
  int64_t c_stride = 0;
  // Of a and b: f32 or bf16.
  dnnl::memory::data_type type = dnnl::memory::data_type::f32;
};

// One thread uses it at a time. Run allocates nothing.
class StepGemm {
 public:
  // May throw dnnl::error: no kernel for the type on this processor.
  explicit StepGemm(const StepGemmShape& shape);

  // Memory the caller lends: b in the layout that Run reads, and scratch of both calls.
  int64_t packed_bytes() const { return static_cast<int64_t>(packed_.get_size()); }
  int64_t scratch_bytes() const { return scratch_bytes_; }

  absl::Status Pack(const void* b, void* packed, void* scratch);
  absl::Status Run(const void* a, const void* packed, float* c, void* scratch);

 private:
  OneDnn onednn_;
  dnnl::memory::desc packed_;
  int64_t scratch_bytes_ = 0;
  OneDnnCall pack_;
  OneDnnCall product_;
};

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_STEP_GEMM_H_
