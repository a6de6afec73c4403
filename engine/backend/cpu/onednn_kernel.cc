#include "engine/backend/cpu/onednn_kernel.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/core/status.h"

namespace ampd::cpu {
namespace {

using dnnl::memory;
using runtime::KernelArgs;
using runtime::NodeDesc;

// Below this many multiply-adds and additions a second thread costs more than it saves.
constexpr double kMinFlopsPerThread = 1e6;

// Copies between two layouts of one dtype; not needed when they are the same.
struct Reorder {
  OneDnnCall execution;
  int64_t scratchpad_bytes = 0;

  Reorder() = default;
  Reorder(const OneDnn& onednn, const memory::desc& from, const memory::desc& to) {
    if (from == to) return;
    const dnnl::reorder::primitive_desc pd(onednn.engine, from, onednn.engine, to, UserScratchpad());
    scratchpad_bytes = static_cast<int64_t>(pd.scratchpad_desc().get_size());
    execution = OneDnnCall(onednn, dnnl::reorder(pd),
                           {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
  }
};

DType StorageType(memory::data_type type) { return type == memory::data_type::bf16 ? DType::kBF16 : DType::kF32; }

int64_t Bytes(const memory::desc& desc) { return static_cast<int64_t>(desc.get_size()); }

int64_t Elements(const memory::desc& desc) { return NumElements(desc.dims()); }

std::string LayoutName(const memory::desc& desc) {
  const dnnl_memory_desc_t& d = desc.data;
  const auto list = [](const dnnl_dim_t* first, int n) { return absl::StrJoin(first, first + n, ","); };
  const dnnl_blocking_desc_t& blocking = d.format_desc.blocking;
  return absl::StrCat(DTypeName(StorageType(desc.data_type())), " ", list(d.dims, d.ndims), " padded ",
                      list(d.padded_dims, d.ndims), " strides ", list(blocking.strides, d.ndims), " blocks ",
                      list(blocking.inner_blks, blocking.inner_nblks), " of ",
                      list(blocking.inner_idxs, blocking.inner_nblks));
}

// Writes the copy of a parameter that a primitive reads.
class ParameterWriter {
 public:
  ParameterWriter(std::shared_ptr<OneDnn> onednn, const Operand& operand, int threads)
      : onednn_(std::move(onednn)),
        dtype_(operand.dtype),
        compute_(StorageType(operand.dense.data_type())),
        size_(Elements(operand.dense)),
        threads_(threads),
        reorder_(*onednn_, operand.dense, operand.used) {
    if (reorder_.execution.needed() && dtype_ != DType::kF32) staging_bytes_ = AlignUp(Bytes(operand.dense));
  }

  // The dense copy in the compute dtype, then oneDNN's scratchpad.
  int64_t workspace_bytes() const { return staging_bytes_ + reorder_.scratchpad_bytes; }

  absl::Status Write(const float* master, void* copy, void* workspace) {
    omp_set_num_threads(threads_);
    if (!reorder_.execution.needed()) {
      Convert(master, copy);
      return absl::OkStatus();
    }
    void* dense = const_cast<float*>(master);
    if (dtype_ != DType::kF32) {
      dense = workspace;
      Convert(master, dense);
    }
    return reorder_.execution.Run(*onednn_, {dense, copy, static_cast<char*>(workspace) + staging_bytes_});
  }

 private:
  void Convert(const float* master, void* to) const {
    if (compute_ == dtype_) return ParallelFromF32(threads_, master, size_, dtype_, to);
    ParallelRoundThrough(threads_, dtype_, master, size_, static_cast<float*>(to));
  }

  std::shared_ptr<OneDnn> onednn_;
  DType dtype_;
  DType compute_;
  int64_t size_;
  int threads_;
  Reorder reorder_;
  int64_t staging_bytes_ = 0;
};

// How an input gets from the graph's tensor to what the primitive reads.
struct InputPath {
  Operand operand;
  bool published = false;
  bool converts = false;
  Reorder reorder;
  int64_t converted_at = 0;
  int64_t reordered_at = 0;
};

class OneDnnKernel : public runtime::Kernel {
 public:
  OneDnnKernel(std::shared_ptr<OneDnn> onednn, const NodeDesc& desc, PrimitiveSpec spec)
      : onednn_(std::move(onednn)), threads_(desc.threads), name_(desc.name), axes_(std::move(spec.axes)) {
    for (int i = 0; i < 2; ++i) AddInput(i, spec.inputs[i], desc.IsParameter(i));
    AddOutput(spec.output);
    scratchpad_at_ = layout_.Add(Bytes(spec.scratchpad));
    execution_ = OneDnnCall(*onednn_, std::move(spec.primitive),
                            {{inputs_[0].operand.arg, inputs_[0].operand.used},
                             {inputs_[1].operand.arg, inputs_[1].operand.used},
                             {output_.arg, output_.used},
                             {DNNL_ARG_SCRATCHPAD, spec.scratchpad}});
    reorder_scratchpad_at_ = layout_.Add(reorder_scratchpad_bytes_);
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::optional<runtime::PublishedLayout> published_layout(int input) const override {
    if (input < 0 || input > 1 || !inputs_[input].published) return absl::nullopt;
    const Operand& operand = inputs_[input].operand;
    runtime::PublishedLayout layout;
    layout.key = absl::StrCat(DTypeName(operand.dtype), ":onednn:", axes_, " ", LayoutName(operand.used));
    layout.bytes = Bytes(operand.used);
    auto writer = std::make_shared<ParameterWriter>(onednn_, operand, threads_);
    layout.workspace_bytes = writer->workspace_bytes();
    layout.write = [writer](const float* master, void* copy, void* workspace) {
      return writer->Write(master, copy, workspace);
    };
    return layout;
  }

  absl::Status Launch(const KernelArgs& args) override { return Annotate(Run(args), name_); }

 private:
  void AddInput(int i, const Operand& operand, bool parameter) {
    InputPath& path = inputs_[i];
    path.operand = operand;
    path.converts = operand.dtype != StorageType(operand.dense.data_type());
    path.published = parameter && (path.converts || operand.dense != operand.used);
    if (path.published) return;
    path.reorder = Reorder(*onednn_, operand.dense, operand.used);
    NoteReorder(path.reorder);
    if (path.converts) path.converted_at = layout_.Add(Bytes(operand.dense));
    if (path.reorder.execution.needed()) path.reordered_at = layout_.Add(Bytes(operand.used));
  }

  void AddOutput(const Operand& operand) {
    output_ = operand;
    output_converts_ = operand.dtype != StorageType(operand.dense.data_type());
    output_reorder_ = Reorder(*onednn_, operand.used, operand.dense);
    NoteReorder(output_reorder_);
    if (output_reorder_.execution.needed()) output_used_at_ = layout_.Add(Bytes(operand.used));
    if (output_converts_) output_dense_at_ = layout_.Add(Bytes(operand.dense));
  }

  void NoteReorder(const Reorder& reorder) {
    reorder_scratchpad_bytes_ = std::max(reorder_scratchpad_bytes_, reorder.scratchpad_bytes);
  }

  absl::StatusOr<void*> ReadInput(const InputPath& path, const TensorView& tensor, const KernelArgs& args) const {
    if (path.published) return tensor.data;
    void* data = tensor.data;
    if (path.converts) {
      float* converted = WorkspaceAt<float>(args, path.converted_at);
      ParallelToF32(threads_, path.operand.dtype, data, Elements(path.operand.dense), converted);
      data = converted;
    }
    if (!path.reorder.execution.needed()) return data;
    void* reordered = WorkspaceAt<char>(args, path.reordered_at);
    AMPD_RETURN_IF_ERROR(
        path.reorder.execution.Run(*onednn_, {data, reordered, WorkspaceAt<char>(args, reorder_scratchpad_at_)}));
    return reordered;
  }

  absl::Status Run(const KernelArgs& args) const {
    // A setting of the calling thread; the primitive was made for this many.
    omp_set_num_threads(threads_);
    AMPD_ASSIGN_OR_RETURN(void* first, ReadInput(inputs_[0], args.inputs[0], args));
    AMPD_ASSIGN_OR_RETURN(void* second, ReadInput(inputs_[1], args.inputs[1], args));
    void* dense = output_converts_ ? WorkspaceAt<char>(args, output_dense_at_) : args.outputs[0].data;
    const bool reorders = output_reorder_.execution.needed();
    void* used = reorders ? WorkspaceAt<char>(args, output_used_at_) : dense;
    AMPD_RETURN_IF_ERROR(execution_.Run(*onednn_, {first, second, used, WorkspaceAt<char>(args, scratchpad_at_)}));
    if (reorders) {
      AMPD_RETURN_IF_ERROR(
          output_reorder_.execution.Run(*onednn_, {used, dense, WorkspaceAt<char>(args, reorder_scratchpad_at_)}));
    }
    if (output_converts_) {
      ParallelFromF32(threads_, static_cast<float*>(dense), Elements(output_.dense), output_.dtype,
                      args.outputs[0].data);
    }
    return absl::OkStatus();
  }

  std::shared_ptr<OneDnn> onednn_;
  int threads_;
  std::string name_;
  std::string axes_;
  WorkspaceLayout layout_;
  InputPath inputs_[2];
  Operand output_;
  bool output_converts_ = false;
  Reorder output_reorder_;
  int64_t output_used_at_ = 0;
  int64_t output_dense_at_ = 0;
  int64_t scratchpad_at_ = 0;
  int64_t reorder_scratchpad_at_ = 0;
  int64_t reorder_scratchpad_bytes_ = 0;
  OneDnnCall execution_;
};

std::string DescribeShapes(const NodeDesc& desc) {
  std::string text;
  for (const ir::TensorType& t : desc.inputs) absl::StrAppend(&text, DTypeName(t.dtype), ShapeString(t.shape), " ");
  for (const ir::TensorType& t : desc.outputs) {
    absl::StrAppend(&text, "-> ", DTypeName(t.dtype), ShapeString(t.shape));
  }
  return text;
}

}  // namespace

memory::data_type ComputeType(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc DenseDesc(const memory::dims& dims, memory::data_type type, const memory::dims& strides) {
  return memory::desc(dims, type, strides);
}

memory::desc AnyLayout(const memory::desc& desc) {
  return memory::desc(desc.dims(), desc.data_type(), memory::format_tag::any);
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareOneDnn(std::shared_ptr<OneDnn> onednn, const NodeDesc& desc,
                                                               double flops, const MakeSpec& make) {
  NodeDesc limited = desc;
  if (flops < 2 * kMinFlopsPerThread) limited.threads = 1;
  omp_set_num_threads(limited.threads);
  const DType dtype = desc.inputs[0].dtype;
  std::string failure;
  for (memory::data_type compute : {ComputeType(dtype), memory::data_type::f32}) {
    try {
      return std::unique_ptr<runtime::Kernel>(
          std::make_unique<OneDnnKernel>(onednn, limited, make(*onednn, limited, compute)));
    } catch (const dnnl::error& e) {
      failure = absl::StrCat(e.what(), " (", dnnl_status2str(e.status), ")");
    }
  }
  return absl::InternalError(absl::StrCat("node ", desc.name, ": oneDNN cannot run ", ir::OpName(desc.op), " ",
                                          DescribeShapes(desc), ": ", failure));
}

}  // namespace ampd::cpu
