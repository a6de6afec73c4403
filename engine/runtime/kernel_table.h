// Kernels of a backend, found by op and by the dtypes of every operand. There are no static initialisers: a backend
// fills its table in one explicit function, such as RegisterCpuKernels().
#ifndef AMPD_ENGINE_RUNTIME_KERNEL_TABLE_H_
#define AMPD_ENGINE_RUNTIME_KERNEL_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"
#include "engine/runtime/step_state.h"

namespace ampd::runtime {

// What a kernel is made for: constants, shapes and dtypes, no data.
struct NodeDesc {
  ir::OpKind op;
  std::string name;
  ir::Attributes attributes;
  std::vector<ir::TensorType> inputs;
  std::vector<ir::TensorType> outputs;
  int threads = 1;
  // Which inputs are a parameter or a published copy of one: only for these may published_layout() name a layout, since
  // a kernel could not tell at Launch what it got. Shorter than `inputs`: the rest are false.
  std::vector<bool> parameter_inputs;
  // As in ir::Node, of kFused and kRegion alone.
  std::vector<ir::FusedStep> steps;
  std::vector<int32_t> results;

  bool IsParameter(size_t input) const { return input < parameter_inputs.size() && parameter_inputs[input]; }
};

// Every pointer lies in the backend's memory.
struct KernelArgs {
  absl::Span<const TensorView> inputs;
  absl::Span<const TensorView> outputs;
  // workspace_bytes() of scratch memory, aligned to kTensorAlignment; its contents are undefined.
  void* workspace = nullptr;
  // In the backend's memory too: of another than the host's only kernels read it.
  const StepState* step = nullptr;
};

// The layout in which a kernel wants to read a parameter, opaque to everyone else.
struct PublishedLayout {
  // Copies of one parameter with equal keys are one copy. Names dtype and layout, e.g. "bf16:onednn:<descriptor>".
  std::string key;
  int64_t bytes = 0;
  // Scratch memory that `write` needs.
  int64_t workspace_bytes = 0;
  // Writes the copy (`bytes` at `copy`) from the f32 master, dense in the parameter's own shape. Rounds as ToHalf and
  // ToBFloat16 do. Called once per applied step; `workspace` is aligned to kTensorAlignment, its contents undefined.
  // All three lie in the backend's memory.
  std::function<absl::Status(const float* master, void* copy, void* workspace)> write;
  // Set where the copy is nothing but the parameter's elements in this dtype, dense in this shape: the parameter's own,
  // or one that is wider at the ends of axes and zero there.
  absl::optional<ir::TensorType> dense;
};

// A kernel prepared for one node. Launch is called from one thread at a time and allocates nothing.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }
  // For an input that NodeDesc::parameter_inputs marks: the layout Launch reads instead of the dense one, in which case
  // inputs[i].data points at the copy. nullopt: dense, in the operand's dtype.
  virtual absl::optional<PublishedLayout> published_layout(int /*input*/) const { return absl::nullopt; }
  // The input of equal size that Launch may write `output` over, because it has read what it needs of it by then; -1:
  // none. The planner then gives both one address where nobody reads that input afterwards.
  virtual int overwrites(int /*output*/) const { return -1; }
  // Of a kRegion: whether a library has one call for it; false where it runs as the product and the steps behind it.
  virtual bool joined() const { return true; }
  // Outputs never alias inputs but as overwrites() allows. An effect op writes through its inputs as its definition
  // says.
  virtual absl::Status Launch(const KernelArgs& args) = 0;
};

using PrepareKernel = std::function<absl::StatusOr<std::unique_ptr<Kernel>>(const NodeDesc&)>;

class KernelTable {
 public:
  // Dtypes of inputs and outputs. An op whose last input repeats (ops::OpDef::variadic) lists that one once; an input
  // that a node leaves out is not listed.
  using Signature = std::pair<std::vector<DType>, std::vector<DType>>;

  void Add(ir::OpKind op, std::vector<DType> inputs, std::vector<DType> outputs, PrepareKernel prepare) {
    rows_[{op, {std::move(inputs), std::move(outputs)}}] = std::move(prepare);
  }
  // Null when there is none.
  const PrepareKernel* Find(ir::OpKind op, const Signature& signature) const {
    auto it = rows_.find({op, signature});
    return it == rows_.end() ? nullptr : &it->second;
  }
  // For an op whose kernel takes what dtypes its node has: kFused, kRegion.
  void AddForAnyDTypes(ir::OpKind op, PrepareKernel prepare) { any_dtypes_[op] = std::move(prepare); }
  bool Has(ir::OpKind op, const Signature& signature) const { return rows_.count({op, signature}) > 0; }
  // UNIMPLEMENTED, naming op and dtypes, when there is no row.
  absl::StatusOr<std::unique_ptr<Kernel>> Prepare(const NodeDesc& desc) const;
  // Every row, for the test that walks them all.
  std::vector<std::pair<ir::OpKind, Signature>> Rows() const;

 private:
  std::map<std::pair<ir::OpKind, Signature>, PrepareKernel> rows_;
  std::map<ir::OpKind, PrepareKernel> any_dtypes_;
};

// The row that `desc` is looked up by.
KernelTable::Signature SignatureOf(const NodeDesc& desc);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_KERNEL_TABLE_H_
