#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

struct Labels {
  bool ignores = false;
  int64_t ignored = 0;
  int64_t classes = 0;

  Labels(const ir::Attributes& attributes, int64_t classes)
      : ignores(attributes.Has("ignore_index")), ignored(attributes.Int("ignore_index")), classes(classes) {}
  bool counts(int64_t label) const { return label >= 0 && label < classes && !(ignores && label == ignored); }
};

// Whether fewer than `k` classes come before `label` when sorted by logit, equal ones by index.
bool AmongLargest(const float* z, int64_t classes, int64_t label, int64_t k) {
  int64_t before = 0;
  bool has_nan = false;
  for (int64_t c = 0; c < classes; ++c) {
    has_nan |= std::isnan(z[c]);
    before += z[c] > z[label] || (z[c] == z[label] && c < label);
  }
  return !has_nan && before < k;
}

std::unique_ptr<runtime::Kernel> PrepareHits(const NodeDesc& desc) {
  const Labels labels(desc.attributes, desc.inputs[0].shape.back());
  return MakeRowKernel(desc, desc.inputs[0].shape, 2,
                       [labels, k = desc.attributes.Int("k", 1)](const KernelArgs& args, int64_t row) {
                         const float* z = args.inputs[0].as<float>() + row * labels.classes;
                         const int64_t label = args.inputs[1].as<int32_t>()[row];
                         const bool hit = labels.counts(label) && AmongLargest(z, labels.classes, label, k);
                         args.outputs[0].as<float>()[row] = hit ? 1.0f : 0.0f;
                       });
}

std::unique_ptr<runtime::Kernel> PrepareCounts(const NodeDesc& desc) {
  const Labels labels(desc.attributes, desc.attributes.Int("classes"));
  return MakeKernel(0, [labels](const KernelArgs& args) {
    for (int64_t i = 0; i < args.outputs[0].size(); ++i) {
      args.outputs[0].as<float>()[i] = labels.counts(args.inputs[0].as<int32_t>()[i]) ? 1.0f : 0.0f;
    }
  });
}

double Sum(const TensorView& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) sum += static_cast<double>(tensor.as<float>()[i]);
  return sum;
}

void NormalizedSum(const KernelArgs& args) {
  const double sum = Sum(args.inputs[0]), weights = Sum(args.inputs[1]);
  // Without weights there is nothing to divide by. What is not finite must show, also where it would divide to zero.
  const double mean = weights == 0 ? sum * 0 : sum / weights + weights * 0;
  *args.outputs[0].as<float>() = static_cast<float>(mean);
}

void NormalizedSumGrad(const KernelArgs& args) {
  const double weights = Sum(args.inputs[1]);
  const double share = weights == 0 ? 0 : static_cast<double>(*args.inputs[0].as<float>()) / weights;
  std::fill_n(args.outputs[0].as<float>(), args.outputs[0].size(), static_cast<float>(share));
}

}  // namespace

void RegisterLabelMetrics(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kArgmaxEqual, {f, i}, {f}, PrepareHits);
  table->Add(ir::OpKind::kTopKEqual, {f, i}, {f}, PrepareHits);
  table->Add(ir::OpKind::kLabelCounts, {i}, {f}, PrepareCounts);
  table->Add(ir::OpKind::kNormalizedSum, {f, f}, {f}, [](const NodeDesc&) { return MakeKernel(0, NormalizedSum); });
  table->Add(ir::OpKind::kNormalizedSumGrad, {f, f}, {f},
             [](const NodeDesc&) { return MakeKernel(0, NormalizedSumGrad); });
}

}  // namespace ampd::cpu
