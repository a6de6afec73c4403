#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

int64_t Channels(const RefTensors& in) { return in[0].shape.back(); }

RefTensors Statistics(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const int64_t channels = Channels(in);
  const double count = static_cast<double>(in[0].size() / channels);
  RefTensors out(3, Filled(Shape{channels}));
  for (int64_t i = 0; i < in[0].size(); ++i) out[0].data[i % channels] += in[0].data[i] / count;
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double d = in[0].data[i] - out[0].data[i % channels];
    out[1].data[i % channels] += d * d / count;
  }
  for (int64_t c = 0; c < channels; ++c) {
    out[2].data[c] = in[1].data[c] / std::sqrt(out[1].data[c] + desc.attributes.Double("epsilon"));
  }
  return out;
}

// Sums in double of values that may cancel: far below f32's roundoff of their magnitudes. The factor sees the variance
// rounded to f32.
RefTensors Error(const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
  const int64_t channels = Channels(in);
  RefTensors error(3, Filled(Shape{channels}));
  const double share = Gamma(1) * kF32Roundoff / static_cast<double>(in[0].size() / channels);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double x = std::fabs(in[0].data[i]);
    error[0].data[i % channels] += share * x;
    error[1].data[i % channels] += share * x * x;
  }
  for (int64_t c = 0; c < channels; ++c) {
    const double var = out[1].data[c];
    const double relative = (error[1].data[c] + Gamma(1) * var) / (var + desc.attributes.Double("epsilon"));
    error[2].data[c] = std::fabs(out[2].data[c]) * relative;
  }
  return error;
}

}  // namespace

std::vector<OpRow> BatchNormStatisticsRows() {
  std::vector<KernelTable::Signature> signatures;
  constexpr DType f = DType::kF32;
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) signatures.push_back({{t, f}, {f, f, f}});
  std::vector<OpShapes> cases;
  for (const Shape& s :
       {Shape{1, 1}, Shape{5, 3}, Shape{2, 3, 5, 7}, Shape{9, 1500}, Shape{70, 1025}, Shape{4, 28, 28, 16}}) {
    cases.push_back({{{"epsilon", 1e-5}}, {s, {s.back()}}});
  }
  return {{.op = ir::OpKind::kBatchNormStatistics,
           .signatures = std::move(signatures),
           .cases = std::move(cases),
           .reference = Statistics,
           .error = Error}};
}

}  // namespace ampd::testing
