#include "engine/backend/cpu/step_gemm.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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
    pack_ = Make(dnnl::reorder(pack),
                 {{DNNL_ARG_FROM, b}, {DNNL_ARG_TO, packed_}, {DNNL_ARG_SCRATCHPAD, pack.scratchpad_desc()}});
    product_ = Make(dnnl::matmul(pd), {{DNNL_ARG_SRC, a},
                                       {DNNL_ARG_WEIGHTS, packed_},
                                       {DNNL_ARG_DST, c},
                                       {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
  } catch (...) {
    omp_set_num_threads(threads);
    throw;
  }
  omp_set_num_threads(threads);
}

StepGemm::Execution StepGemm::Make(dnnl::primitive primitive,
                                   const std::vector<std::pair<int, memory::desc>>& args) const {
  Execution execution{std::move(primitive), {}, {}};
  for (const auto& [arg, desc] : args) {
    execution.memories.emplace_back(desc, onednn_.engine, static_cast<void*>(nullptr));
    execution.args.push_back({arg, execution.memories.back().get()});
  }
  return execution;
}

absl::Status StepGemm::Pack(const void* b, void* packed, void* scratch) {
  return Execute(pack_, {const_cast<void*>(b), packed, scratch});
}

absl::Status StepGemm::Run(const void* a, const void* packed, float* c, void* scratch) {
  return Execute(product_, {const_cast<void*>(a), const_cast<void*>(packed), c, scratch});
}

absl::Status StepGemm::Execute(const Execution& execution, std::initializer_list<void*> data) {
  size_t i = 0;
  dnnl_status_t status = dnnl_success;
  for (void* pointer : data) {
    void* current = nullptr;
    const dnnl_memory_t mem = execution.memories[i++].get();
    if (status == dnnl_success) status = dnnl_memory_get_data_handle(mem, &current);
    // Setting it clears the padding of blocked layouts each time.
    if (status == dnnl_success && current != pointer) status = dnnl_memory_set_data_handle(mem, pointer);
  }
  if (status == dnnl_success) {
    status = dnnl_primitive_execute(execution.primitive.get(), onednn_.stream.get(),
                                    static_cast<int>(execution.args.size()), execution.args.data());
  }
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN step product: ", dnnl_status2str(status)));
}

}  // namespace ampd::cpu
