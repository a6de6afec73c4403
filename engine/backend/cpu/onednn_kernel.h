// Internal to the CPU backend: a oneDNN primitive of two inputs and one output as a kernel. It converts, reorders and
// publishes operands where the primitive's dtype or layout differs from the graph's.
#ifndef AMPD_ENGINE_BACKEND_CPU_ONEDNN_KERNEL_H_
#define AMPD_ENGINE_BACKEND_CPU_ONEDNN_KERNEL_H_

#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cpu/onednn_call.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cpu {

// One operand of a primitive.
struct Operand {
  int arg = 0;                // DNNL_ARG_...
  DType dtype = DType::kF32;  // as the graph stores it
  dnnl::memory::desc dense;   // the graph's layout, in the dtype the primitive computes in
  dnnl::memory::desc used;    // the layout the primitive reads or writes, in the same dtype
};

struct PrimitiveSpec {
  dnnl::primitive primitive;
  dnnl::memory::desc scratchpad;
  Operand inputs[2];  // in the node's order
  Operand output;
  // Names the logical axes of a published operand: layouts of unlike axes must not share a key.
  std::string axes;
};

// oneDNN's dtype for a graph's float dtype: f32 for f16, for which it has no arithmetic.
dnnl::memory::data_type ComputeType(DType dtype);

// A description of dense memory with the axes in oneDNN's logical order. `strides` in elements.
dnnl::memory::desc DenseDesc(const dnnl::memory::dims& dims, dnnl::memory::data_type type,
                             const dnnl::memory::dims& strides);

// The same dims with the layout left to oneDNN.
dnnl::memory::desc AnyLayout(const dnnl::memory::desc& desc);

dnnl::primitive_attr UserScratchpad();

// Calls `make` with bf16 arithmetic for bf16 nodes where the processor has it, else with f32. A failure of
// oneDNN is INTERNAL, naming the node and its shapes.
using MakeSpec =
    std::function<PrimitiveSpec(const OneDnn& onednn, const runtime::NodeDesc& desc, dnnl::memory::data_type compute)>;
absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareOneDnn(std::shared_ptr<OneDnn> onednn,
                                                               const runtime::NodeDesc& desc, double flops,
                                                               const MakeSpec& make);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_ONEDNN_KERNEL_H_
