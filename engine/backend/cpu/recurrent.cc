#include "engine/backend/cpu/recurrent.h"

#include <omp.h>

#include <cstring>

#include "engine/ops/compute.h"

namespace ampd::cpu {
namespace {

// Below this many operations a second thread costs more than it saves.
constexpr double kMinFlopsPerThread = 1e6;

}  // namespace

Sequence::Sequence(const runtime::NodeDesc& desc, const Shape& steps, int64_t hidden_size, double flops,
                   dnnl::memory::data_type compute_type)
    : batch(steps[0]),
      time(steps[1]),
      hidden(hidden_size),
      reverse(desc.attributes.String("direction") == "reverse"),
      tf32(desc.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32),
      dtype(desc.inputs[0].dtype),
      compute(compute_type) {
  const double share = std::min(flops / kMinFlopsPerThread, static_cast<double>(batch));
  parts = PartsFor(desc.threads, static_cast<int64_t>(share), 1);
}

SequenceProduct::SequenceProduct(const Sequence& sequence, int64_t repeat, StepGemmShape shape,
                                 WorkspaceLayout* layout) {
  for (int p = 0; p < sequence.parts; ++p) {
    shape.rows = sequence.rows(p) * repeat;
    shape.type = sequence.compute;
    Part part{std::make_unique<StepGemm>(shape)};
    part.packed_at = layout->Add(part.gemm->packed_bytes());
    part.scratch_at = layout->Add(part.gemm->scratch_bytes());
    parts_.push_back(std::move(part));
  }
}

absl::Status SequenceProduct::Pack(const runtime::KernelArgs& args, int part, const void* b) {
  Part& p = parts_[part];
  return p.gemm->Pack(b, WorkspaceAt<char>(args, p.packed_at), WorkspaceAt<char>(args, p.scratch_at));
}

absl::Status SequenceProduct::Run(const runtime::KernelArgs& args, int part, const void* a, float* c) {
  Part& p = parts_[part];
  return p.gemm->Run(a, WorkspaceAt<char>(args, p.packed_at), c, WorkspaceAt<char>(args, p.scratch_at));
}

SequenceOperand::SequenceOperand(const Sequence& sequence, int64_t elements, WorkspaceLayout* layout, bool rows)
    : dtype_(sequence.dtype),
      converts_(sequence.converts()),
      tf32_(sequence.tf32),
      bytes_(sequence.compute_bytes()),
      at_(layout->Add(rows || converts_ ? elements * sequence.compute_bytes() : 0)) {}

void SequenceOperand::Convert(const void* stored, int64_t n, void* to) const {
  if (!converts_) {
    std::memcpy(to, stored, static_cast<size_t>(n * bytes_));
    return;
  }
  ToF32(dtype_, stored, n, static_cast<float*>(to));
  if (tf32_) RoundToTf32(static_cast<float*>(to), n, static_cast<float*>(to));
}

const void* SequenceOperand::Ready(const runtime::KernelArgs& args, const void* stored, int64_t first,
                                   int64_t n) const {
  if (!converts_) return stored;
  PutRow(args, stored, first, n);
  return At(args, first);
}

void SequenceOperand::PutRow(const runtime::KernelArgs& args, const void* stored, int64_t first, int64_t n) const {
  Convert(stored, n, WorkspaceAt<char>(args, at_) + first * bytes_);
}

void SequenceOperand::ClearRow(const runtime::KernelArgs& args, int64_t first, int64_t n) const {
  std::memset(WorkspaceAt<char>(args, at_) + first * bytes_, 0, static_cast<size_t>(n * bytes_));
}

absl::Status RunParts(const Sequence& sequence, std::vector<absl::Status>* statuses,
                      const std::function<absl::Status(int part)>& part) {
  ParallelParts(sequence.parts, [&](int p) {
    // A setting of the thread.
    omp_set_num_threads(1);
    (*statuses)[p] = part(p);
  });
  for (const absl::Status& status : *statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareSequence(
    const runtime::NodeDesc& desc,
    const std::function<std::unique_ptr<runtime::Kernel>(dnnl::memory::data_type compute)>& make) {
  std::string failure;
  for (dnnl::memory::data_type compute : {ComputeType(desc.inputs[0].dtype), dnnl::memory::data_type::f32}) {
    try {
      return make(compute);
    } catch (const dnnl::error& e) {
      failure = e.what();
    }
  }
  return absl::InternalError(
      absl::StrCat("node ", desc.name, ": oneDNN cannot run ", ir::OpName(desc.op), ": ", failure));
}

}  // namespace ampd::cpu
