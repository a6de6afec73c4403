// Products and convolutions over sizes; tests/bench/peers/torch_kernels.py measures the same by the same names.
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "tests/bench/kernel_rows.h"

namespace ampd::bench {
namespace {

using Ints = std::vector<int64_t>;

struct Type {
  const char* suffix;
  DType dtype;
  bool tf32 = false;
};
constexpr Type kTypes[] = {{"", DType::kF32}, {"/tf32", DType::kF32, true}, {"", DType::kF16}, {"", DType::kBF16}};

void SetCompute(const Type& type, ir::Attributes* attributes) {
  if (type.tf32) attributes->Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
}

absl::Status SweepProducts(const Type& type) {
  struct Case {
    int64_t m, k, n;
  };
  for (const Case& c : {Case{512, 512, 512},
                        {1024, 1024, 1024},
                        {2048, 2048, 2048},
                        {4096, 4096, 4096},
                        {8192, 8192, 8192},
                        {8192, 768, 3072},
                        {8192, 3072, 768},
                        {8192, 2048, 8192},
                        {256, 4096, 1000}}) {
    Use use{.op = ir::OpKind::kMatmul, .inputs = {{type.dtype, {c.m, c.k}}, {type.dtype, {c.k, c.n}}}, .weights = {1}};
    SetCompute(type, &use.attributes);
    AMPD_RETURN_IF_ERROR(MeasureUse(absl::StrCat(c.m, "x", c.k, "x", c.n, type.suffix), use));
  }
  return absl::OkStatus();
}

// ResNet-50's, and the large windows of the convnet.
absl::Status SweepConvolutions(const Type& type) {
  struct Case {
    int64_t batch, size, in, kernel, out, stride;
  };
  for (const Case& c : {Case{64, 224, 8, 7, 64, 2},
                        {64, 56, 64, 1, 256, 1},
                        {64, 56, 64, 3, 64, 1},
                        {64, 28, 128, 3, 128, 1},
                        {64, 28, 256, 3, 256, 2},
                        {64, 14, 256, 3, 256, 1},
                        {64, 14, 1024, 1, 256, 1},
                        {64, 7, 512, 3, 512, 1},
                        {64, 128, 32, 7, 64, 2},
                        {64, 64, 64, 11, 128, 2}}) {
    Use use{.op = ir::OpKind::kConv2d,
            .attributes = {{"strides", Ints{c.stride, c.stride}}, {"pads", Ints(4, c.kernel / 2)}},
            .inputs = {{type.dtype, {c.batch, c.size, c.size, c.in}}, {type.dtype, {c.out, c.kernel, c.kernel, c.in}}},
            .weights = {1}};
    SetCompute(type, &use.attributes);
    const std::string sizes = absl::StrCat(c.batch, "x", c.size, "x", c.size, "x", c.in, ",", c.kernel, "x", c.kernel,
                                           "x", c.out, ",", c.stride, type.suffix);
    AMPD_RETURN_IF_ERROR(MeasureUse(sizes, use));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RegisterSweeps() {
  for (const Type& type : kTypes) {
    AMPD_RETURN_IF_ERROR(SweepProducts(type));
    AMPD_RETURN_IF_ERROR(SweepConvolutions(type));
  }
  return absl::OkStatus();
}

}  // namespace ampd::bench
