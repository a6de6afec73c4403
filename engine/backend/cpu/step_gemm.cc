#include "engine/backend/cpu/step_gemm.h"

#include <omp.h>

#include <algorithm>

namespace ampd::cpu {

using dnnl::memory;

StepGemm::StepGemm(const StepGemmShape& s) {
  // A primitive is made for as many threads as its maker may use.
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const memory::desc a = DenseDesc({s.rows, s.inner}, s.type, {s.inner, 1});
  const memory::desc b = s.b_transposed ? DenseDesc({s.inner, s.columns}, s.type, {1, s.inner})
                                        : DenseDesc({s.inner, s.columns}, s.type, {s.columns, 1});
  const memory::desc c =
      DenseDesc({s.rows, s.columns}, memory::data_type::f32, {s.c_stride > 0 ? s.c_stride : s.columns, 1});
  try {
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, AnyLayout(b), c), UserScratchpad(), onednn_.engine);
    packed_ = pd.weights_desc();
    const dnnl::reorder::primitive_desc pack(onednn_.engine, b, onednn_.engine, packed_, UserScratchpad());
    scratch_bytes_ = static_cast<int64_t>(std::max(pd.scratchpad_desc().get_size(), pack.scratchpad_desc().get_size()));
    pack_ = OneDnnCall(onednn_, dnnl::reorder(pack),
                       {{DNNL_ARG_FROM, b}, {DNNL_ARG_TO, packed_}, {DNNL_ARG_SCRATCHPAD, pack.scratchpad_desc()}});
    product_ = OneDnnCall(onednn_, dnnl::matmul(pd),
                          {{DNNL_ARG_SRC, a},
                           {DNNL_ARG_WEIGHTS, packed_},
                           {DNNL_ARG_DST, c},
                           {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
  } catch (...) {
    omp_set_num_threads(threads);
    throw;
  }
  omp_set_num_threads(threads);
}

absl::Status StepGemm::Pack(const void* b, void* packed, void* scratch) {
  return pack_.Run(onednn_, {const_cast<void*>(b), packed, scratch});
}

absl::Status StepGemm::Run(const void* a, const void* packed, float* c, void* scratch) {
  return product_.Run(onednn_, {const_cast<void*>(a), const_cast<void*>(packed), c, scratch});
}

}  // namespace ampd::cpu
