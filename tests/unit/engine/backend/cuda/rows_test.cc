// Kernels over rows and channels at sizes that the walk over all kernels does not reach, because other plans are made
// for them there (rows too long for registers, rows whose sums are shared), and on values that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/inverse_deviation.h"
#include "engine/backend/cuda/wide.h"
#include "engine/core/float8.h"
#include "engine/ops/op_def.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"
#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kF = DType::kF32, kH = DType::kF16, kB = DType::kBF16, kI = DType::kI32;

class CudaRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no device here";
  }

  static NodeDesc Describe(OpKind op, const Attributes& attributes, const std::vector<ir::TensorType>& inputs) {
    NodeDesc desc{.op = op, .name = "rows", .attributes = attributes, .inputs = inputs};
    const auto outputs = ops::InferTypes(op, {desc.name, desc.attributes, desc.inputs});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    if (outputs.ok()) desc.outputs = *outputs;
    return desc;
  }

  std::vector<Tensor> Run(const NodeDesc& desc, const std::vector<RefTensor>& inputs) {
    auto results = RunTested(desc, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : std::vector<Tensor>(desc.outputs.size());
  }

  // The op on drawn inputs, against float64.
  void ExpectAgrees(OpKind op, const Attributes& attributes, const std::vector<ir::TensorType>& inputs) {
    const NodeDesc desc = Describe(op, attributes, inputs);
    Random random(7);
    std::vector<RefTensor> drawn;
    if (const OpRow* row = FindOpRow(op)) {
      drawn = DrawInputs(*row, desc, &random);
    } else {
      for (const ir::TensorType& t : inputs) drawn.push_back(RandomTensor(&random, t.shape, t.dtype, 0.01, 3));
    }
    const std::vector<Tensor> results = Run(desc, drawn);
    const std::vector<RefTensor> expected = ReferenceOp(desc, drawn, {});
    const std::vector<RefTensor> bounds = ErrorBound(desc, drawn, expected, {});
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(Compare(FromTensor(results[i].view()), expected[i], bounds[i], desc.outputs[i].dtype), "")
          << testing::Describe(desc) << ", result " << i;
    }
  }

  // The first result.
  std::vector<double> Results(OpKind op, const Attributes& attributes, const std::vector<ir::TensorType>& types,
                              const std::vector<RefTensor>& inputs) {
    return FromTensor(Run(Describe(op, attributes, types), inputs)[0].view()).data;
  }
};

TEST_F(CudaRows, NormsOfLongRows) {
  for (const auto& [t, n] : {std::pair{kF, int64_t{40000}}, {kF, 9001}, {kB, 33000}, {kH, 9001}}) {
    const ir::TensorType x{t, {3, n}}, vector{kF, {n}}, statistic{kF, {3, 1}};
    const Attributes a{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
    ExpectAgrees(OpKind::kLayerNorm, a, {x, vector, vector});
    ExpectAgrees(OpKind::kLayerNormGrad, a, {x, x, statistic, statistic, vector});
    ExpectAgrees(OpKind::kLayerNormGrad, a, {x, x, statistic, statistic, vector, x});
    ExpectAgrees(OpKind::kRmsNorm, a, {x});
    ExpectAgrees(OpKind::kRmsNormGrad, a, {x, x, statistic, vector, x});
  }
}

// A step whose rows are not finite is skipped; one whose rows became their bias, without a word, would be applied.
TEST_F(CudaRows, NormsOfSquaresThatOverflow) {
  const Attributes a{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  for (const auto& [t, m, overflows] :
       {std::tuple{kF, 1e15, false}, {kB, 1e15, false}, {kB, 6e18, true}, {kF, 1e19, true}, {kF, 1e25, true}}) {
    for (int64_t n : {64, 68, 1032, 40000}) {
      RefTensor x = Filled({2, n}, 1);
      for (int64_t i = 0; i < n; ++i) {
        const double sign = i % 2 == 0 ? 1 : -1, size = 1 + 0.25 * static_cast<double>(i / 2 % 4);
        x.data[static_cast<size_t>(i)] = RoundToDType(sign * m * size, t);
        x.data[static_cast<size_t>(n + i)] = sign * size;
      }
      for (OpKind op : {OpKind::kLayerNorm, OpKind::kRmsNorm}) {
        const NodeDesc desc = Describe(op, a, {{t, x.shape}});
        const std::vector<double> y = Results(op, a, desc.inputs, {x});
        const std::vector<double> expected = ReferenceOp(desc, {x}, {})[0].data;
        for (size_t i = 0; i < y.size(); ++i) {
          if (overflows && i < static_cast<size_t>(n) && !std::isfinite(y[i])) continue;
          ASSERT_NEAR(y[i], expected[i], 8 * UnitRoundoff(t)) << testing::Describe(desc) << ", " << m << " at " << i;
        }
      }
    }
  }
}

// Rounding takes the variance of equal values below 0: by more than epsilon, where they are large.
TEST_F(CudaRows, LayerNormOfEqualValuesIsItsBias) {
  const Attributes a{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  for (int64_t n : {49, 64, 1030, 40001}) {
    for (double value : {1.0, -3e5, 3e13, 1e14, 1e18}) {
      const RefTensor x = Filled({3, n}, RoundToDType(value, kF));
      const ir::TensorType vector{kF, {n}};
      const std::vector<double> y =
          Results(OpKind::kLayerNorm, a, {{kF, x.shape}, vector, vector}, {x, Filled({n}, 2), Filled({n}, 0.5)});
      for (double v : y) ASSERT_EQ(v, 0.5) << n << " times " << value;
    }
  }
}

TEST_F(CudaRows, NormGradientsOfManyRows) {
  const Attributes a{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  for (const auto& [t, n] : {std::pair{kF, int64_t{24}}, {kB, 264}, {kB, 776}, {kH, 1032}, {kF, 33}}) {
    const ir::TensorType x{t, {4201, n}}, vector{kF, {n}}, statistic{kF, {4201, 1}};
    ExpectAgrees(OpKind::kLayerNormGrad, a, {x, x, statistic, statistic, vector});
    ExpectAgrees(OpKind::kLayerNormGrad, a, {x, x, statistic, statistic, vector, x});
  }
}

TEST_F(CudaRows, SoftmaxOfLongRows) {
  // 12250: with the kernels' static arrays more than the 48 KiB that need no leave.
  for (int64_t n : {70000, 33333, 12250, 8200, 2052}) {
    const ir::TensorType x{kF, {2, n}};
    for (OpKind op : {OpKind::kSoftmax, OpKind::kLogSoftmax}) ExpectAgrees(op, {{"axis", int64_t{1}}}, {x});
    for (OpKind op : {OpKind::kSoftmaxGrad, OpKind::kLogSoftmaxGrad}) ExpectAgrees(op, {{"axis", int64_t{1}}}, {x, x});
  }
}

TEST_F(CudaRows, CrossEntropyOfLargeVocabularies) {
  for (const auto& [t, n] : {std::pair{kF, int64_t{50304}},
                             {kF, 50257},
                             {kF, 12250},
                             {kF, 8200},
                             {kF, 4096},
                             {kB, 50304},
                             {kH, 33000},
                             {kB, 12250},
                             {kH, 8200}}) {
    const ir::TensorType z{t, {3, n}}, targets{kF, {3, n}}, labels{kI, {3}}, losses{kF, {3}}, weights{kF, {n}};
    for (const Attributes& a : {Attributes{}, Attributes{{"smoothing", 0.1}}}) {
      ExpectAgrees(OpKind::kSoftmaxCrossEntropy, a, {z, labels, weights});
      ExpectAgrees(OpKind::kSoftmaxCrossEntropyGrad, a, {losses, z, labels, weights});
    }
    ExpectAgrees(OpKind::kSoftCrossEntropy, {{"smoothing", 0.1}}, {z, targets});
    ExpectAgrees(OpKind::kSoftCrossEntropyGrad, {}, {losses, z, targets});
    if (t == kF) ExpectAgrees(OpKind::kTopKEqual, {{"k", int64_t{5}}}, {z, labels});
  }
}

TEST_F(CudaRows, CrossEntropyOfPaddedVocabularies) {
  for (const auto& [t, n, classes] : {std::tuple{kF, int64_t{50264}, int64_t{50257}},
                                      {kB, 50264, 50257},
                                      {kH, 50264, 50250},
                                      {kB, 2056, 2050},
                                      {kB, 200000, 199993}}) {
    const ir::TensorType z{t, {3, n}}, targets{kF, {3, classes}}, labels{kI, {3}}, losses{kF, {3}},
        weights{kF, {classes}};
    for (double smoothing : {0.0, 0.1}) {
      const Attributes a{{"classes", classes}, {"smoothing", smoothing}};
      ExpectAgrees(OpKind::kSoftmaxCrossEntropy, a, {z, labels});
      ExpectAgrees(OpKind::kSoftmaxCrossEntropyGrad, a, {losses, z, labels});
      ExpectAgrees(OpKind::kSoftmaxCrossEntropyGrad, a, {losses, z, labels, weights});
    }
    ExpectAgrees(OpKind::kSoftCrossEntropy, {{"classes", classes}}, {z, targets});
    ExpectAgrees(OpKind::kSoftCrossEntropyGrad, {{"classes", classes}}, {losses, z, targets});
  }
}

// Of whose rows more than one block is on a multiprocessor.
TEST_F(CudaRows, CrossEntropyOfManyRowsOfALargeVocabulary) {
  const ir::TensorType z{kF, {520, 16392}}, labels{kI, {520}}, losses{kF, {520}};
  const Attributes a{{"classes", int64_t{16387}}};
  ExpectAgrees(OpKind::kSoftmaxCrossEntropy, a, {z, labels});
  ExpectAgrees(OpKind::kSoftmaxCrossEntropyGrad, a, {losses, z, labels});
}

TEST_F(CudaRows, GradientOverItsLogits) {
  for (const auto& [t, n] :
       {std::pair{kF, int64_t{10}}, {kF, 1000}, {kF, 50257}, {kH, 10}, {kB, 1000}, {kB, 50304}, {kH, 200000}}) {
    for (double smoothing : {0.0, 0.1}) {
      const NodeDesc desc = Describe(OpKind::kSoftmaxCrossEntropyGrad, {{"smoothing", smoothing}, {"classes", n - 3}},
                                     {{kF, {3}}, {t, {3, n}}, {kI, {3}}});
      Random random(3);
      const std::vector<RefTensor> inputs = DrawInputs(*FindOpRow(desc.op), desc, &random);
      const std::vector<Tensor> apart = Run(desc, inputs);
      runtime::Memory* const memory = TheBackend()->memory();
      const auto kernel = TheBackend()->kernels().Prepare(desc);
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      ASSERT_EQ((*kernel)->overwrites(0), 1);
      std::vector<runtime::Buffer> buffers;
      std::vector<TensorView> in;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Tensor host = ToTensor(inputs[i], desc.inputs[i].dtype);
        buffers.push_back(*runtime::Buffer::Allocate(memory, host.view().bytes(), "input"));
        ASSERT_TRUE(memory->Upload(host.view().data, host.view().bytes(), buffers.back().data()).ok());
        in.push_back({buffers.back().data(), desc.inputs[i].dtype, desc.inputs[i].shape});
      }
      ASSERT_TRUE((*kernel)->Launch({.inputs = in, .outputs = {&in[1], 1}}).ok());
      const Tensor logits(t, desc.inputs[1].shape);
      ASSERT_TRUE(memory->Download(in[1].data, logits.view().bytes(), logits.view().data).ok());
      EXPECT_TRUE(SameBits(apart[0], logits)) << n;
    }
  }
}

TEST_F(CudaRows, ChannelsOfManyRows) {
  for (const auto& [t, shape] :
       {std::pair{kF, Shape{70000, 3}}, {kB, {3000, 520}}, {kH, {20000, 16}}, {kF, {2100, 36}}, {kB, {9000, 7}}}) {
    const ir::TensorType x{t, shape}, vector{kF, {shape.back()}};
    const Attributes a{{"epsilon", 1e-5}};
    ExpectAgrees(OpKind::kBatchNormStatistics, a, {x, vector});
    ExpectAgrees(OpKind::kBatchNorm, a, {x, vector, vector});
    ExpectAgrees(OpKind::kBatchNormGrad, a, {x, x, vector, vector, vector});
    ExpectAgrees(OpKind::kBatchNormGrad, a, {x, x, vector, vector, vector, vector, vector});
    ExpectAgrees(OpKind::kSumTo, {{"shape", Ints{shape.back()}}, {"dtype", "f32"}}, {x});
  }
}

TEST_F(CudaRows, GroupsAndPoolsOfLargeImages) {
  const ir::TensorType x{kB, {2, 90, 100, 24}}, vector{kF, {24}}, statistic{kF, {2, 3}};
  const Attributes a{{"groups", int64_t{3}}, {"epsilon", 1e-5}};
  ExpectAgrees(OpKind::kGroupNorm, a, {x, vector, vector});
  ExpectAgrees(OpKind::kGroupNormGrad, a, {x, x, statistic, statistic, vector});
  ExpectAgrees(OpKind::kGlobalAvgPool, {}, {x});
}

TEST_F(CudaRows, ReductionsOfEveryPattern) {
  for (OpKind op : {OpKind::kReduceSum, OpKind::kReduceMax, OpKind::kReduceProd}) {
    for (const auto& [axes, shape] : {std::pair{Ints{0}, Shape{300000}},
                                      {Ints{0, 2}, Shape{11, 8, 5, 12}},
                                      {Ints{1, 3}, Shape{6, 50, 4, 60}},
                                      {Ints{0, 2, 4}, Shape{3, 4, 5, 6, 8}},
                                      {Ints{1, 3, 5}, Shape{3, 4, 5, 2, 2, 8}},
                                      {Ints{1}, Shape{3, 40000}},
                                      {Ints{0}, Shape{20000, 5}}}) {
      if (op == OpKind::kReduceProd && NumElements(shape) > 20000) continue;
      ExpectAgrees(op, {{"axes", axes}, {"keepdims", int64_t{0}}}, {{kF, shape}});
    }
  }
}

TEST_F(CudaRows, RefusesToReadMoreAxesThanItCan) {
  Ints axes;
  Shape shape;
  for (int64_t d = 0; d < 20; ++d) {
    shape.push_back(2);
    if (d % 2 == 0) axes.push_back(d);
  }
  const NodeDesc desc = Describe(OpKind::kReduceSum, {{"axes", axes}, {"keepdims", int64_t{0}}}, {{kF, shape}});
  EXPECT_EQ(TheBackend()->kernels().Prepare(desc).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(CudaRows, SoftmaxOfRowsThatAreNotFinite) {
  for (int64_t n : {4, 5, 300, 9000}) {
    RefTensor x = Filled({4, n}, 0.5);
    x.data[0] = -kInf;
    x.data[n + 1] = kInf;
    x.data[2 * n + 2] = kNaN;
    std::fill(x.data.end() - n, x.data.end(), -kInf);
    const std::vector<double> y = Results(OpKind::kSoftmax, {{"axis", int64_t{1}}}, {{kF, x.shape}}, {x});
    EXPECT_EQ(y[0], 0);
    EXPECT_NEAR(y[1], 1.0 / static_cast<double>(n - 1), 1e-6);
    for (int64_t i = n; i < 4 * n; ++i) EXPECT_TRUE(std::isnan(y[i])) << n << " " << i;
    const std::vector<double> log_y = Results(OpKind::kLogSoftmax, {{"axis", int64_t{1}}}, {{kF, x.shape}}, {x});
    EXPECT_EQ(log_y[0], -kInf);
    EXPECT_NEAR(log_y[1], -std::log(static_cast<double>(n - 1)), 1e-5);
    for (int64_t i = n; i < 4 * n; ++i) EXPECT_TRUE(std::isnan(log_y[i])) << n << " " << i;
  }
}

TEST_F(CudaRows, SoftmaxOfColumnsThatAreNotFinite) {
  const RefTensor x{{3, 4}, {-kInf, 1, 1, -kInf, 2, kInf, kNaN, -kInf, 2, 1, 1, -kInf}};
  const std::vector<double> y = Results(OpKind::kSoftmax, {{"axis", int64_t{0}}}, {{kF, x.shape}}, {x});
  for (int64_t i = 0; i < 12; ++i) {
    if (i % 4 != 0) {
      EXPECT_TRUE(std::isnan(y[i])) << i;
    }
  }
  EXPECT_EQ((std::vector<double>{y[0], y[4], y[8]}), (std::vector<double>{0, 0.5, 0.5}));
}

TEST_F(CudaRows, CrossEntropyOfLogitsThatAreNotFinite) {
  for (const auto& [t, n] : {std::pair{kF, int64_t{4}}, {kF, 300}, {kF, 9000}, {kF, 40004}, {kH, 300}, {kB, 40008}}) {
    // At every place of a pack, and in the last one, which may be cut off.
    for (const auto& [bad, at] : {std::pair{kInf, n - 1},
                                  {kInf, int64_t{0}},
                                  {kNaN, n - 1},
                                  {kNaN, n / 2 + 1},
                                  {-kInf, n - 1},
                                  {-kInf, int64_t{0}},
                                  {-kInf, int64_t{1}},
                                  {-kInf, int64_t{2}},
                                  {-kInf, int64_t{3}},
                                  {-kInf, n / 2},
                                  {-kInf, n / 2 + 1},
                                  {-kInf, n - 4}}) {
      RefTensor z = Filled({2, n}, 0.5);
      z.data[at] = bad;
      const RefTensor labels{{2}, {0, 1}};
      const std::vector<double> losses =
          Results(OpKind::kSoftmaxCrossEntropy, {}, {{t, z.shape}, {kI, {2}}}, {z, labels});
      EXPECT_TRUE(std::isnan(losses[0])) << n << " " << bad << " at " << at;
      EXPECT_NEAR(losses[1], std::log(static_cast<double>(n)), 1e-5);
      const std::vector<double> dz = Results(OpKind::kSoftmaxCrossEntropyGrad, {}, {{kF, {2}}, {t, z.shape}, {kI, {2}}},
                                             {Filled({2}, 1), z, labels});
      EXPECT_TRUE(std::isnan(dz[1])) << n << " " << bad << " at " << at;
      EXPECT_TRUE(std::isfinite(dz[n]));
    }
  }
}

// However large they are, only what stands between them counts.
TEST_F(CudaRows, LossesOfTiedLogits) {
  for (const auto& [t, n] : {std::pair{kF, int64_t{4}}, {kF, 7}, {kF, 300}, {kF, 9000}, {kF, 40004}, {kB, 300}}) {
    const double expected = std::log(static_cast<double>(n));
    for (double value : {1e4, 1e16, 3e38, -3e38}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(t), " ", n, " times ", value));
      const RefTensor z = Filled({2, n}, RoundToDType(value, t));
      const RefTensor labels{{2}, {0, static_cast<double>(n - 1)}};
      const ir::TensorType type{t, z.shape};
      for (double smoothing : {0.0, 0.25}) {
        const Attributes a{{"smoothing", smoothing}};
        for (double loss : Results(OpKind::kSoftmaxCrossEntropy, a, {type, {kI, {2}}}, {z, labels})) {
          EXPECT_NEAR(loss, expected, 1e-5) << "smoothing " << smoothing;
        }
      }
      if (t != kF) continue;
      for (double y : Results(OpKind::kLogSoftmax, {{"axis", int64_t{1}}}, {type}, {z})) {
        ASSERT_NEAR(y, -expected, 1e-6 * expected) << "of rows";
      }
      const RefTensor columns{{n, 2}, z.data};
      for (double y : Results(OpKind::kLogSoftmax, {{"axis", int64_t{0}}}, {{t, columns.shape}}, {columns})) {
        ASSERT_NEAR(y, -expected, 1e-6 * expected) << "of columns";
      }
    }
  }
}

// Codes are what engine/core makes of the scaled value, saturated where it was finite; at every place of a word, and in
// the last elements, which are no whole one. The step's check has to see what was not.
TEST_F(CudaRows, QuantizeSaturatesTheFiniteAndPassesTheRestOn) {
  constexpr double kScale = 2;
  const std::vector<double> special = {kInf, -kInf, kNaN, 3e38, -3e38, -0.0, 0x1p-9, 232, 232.5, 30720, 28672, 1.1};
  for (const DType code : {DType::kF8E4M3, DType::kF8E5M2}) {
    const auto code_of = [code](double value) -> int {
      const double limit = MaxFinite(code);
      const auto scaled = static_cast<float>(std::isfinite(value) ? std::clamp(value * kScale, -limit, limit) : value);
      return code == DType::kF8E4M3 ? ToFloat8E4M3(scaled).bits : ToFloat8E5M2(scaled).bits;
    };
    for (const Shape& shape : {Shape{8, 16}, Shape{3, 13}}) {
      for (int outputs = 1; outputs <= 3; ++outputs) {
        for (size_t first = 0; first < special.size(); ++first) {
          RefTensor x = Filled(shape, 0.25);
          for (size_t i = 0; i < x.data.size(); i += 5) x.data[i] = special[(first + i) % special.size()];
          x.data.back() = special[first];
          double largest = 0;
          for (double v : x.data)
            largest = std::isnan(v) || std::isnan(largest) ? kNaN : std::max(largest, std::fabs(v));
          Attributes attributes{{"dtype", std::string(DTypeName(code))}};
          if (outputs > 1) attributes.Set("amax", int64_t{1});
          if (outputs > 2) attributes.Set("turned", int64_t{1});
          const NodeDesc desc = Describe(OpKind::kQuantize, attributes, {{kF, shape}, {kF, {}}});
          const std::vector<Tensor> results = Run(desc, {x, {{}, {kScale}}});
          ASSERT_EQ(results.size(), static_cast<size_t>(outputs));
          for (int64_t i = 0; i < NumElements(shape); ++i) {
            const double value = static_cast<float>(x.data[static_cast<size_t>(i)]);
            const int64_t turned = i % shape[1] * shape[0] + i / shape[1];
            for (const auto& [o, at] : {std::pair{0, i}, {2, turned}}) {
              if (o >= outputs) continue;
              const int got = results[static_cast<size_t>(o)].as<uint8_t>()[at];
              EXPECT_EQ(got, code_of(value)) << testing::Describe(desc) << ", result " << o << ": " << value;
            }
          }
          if (outputs == 1) continue;
          const float amax = results[1].as<float>()[0];
          EXPECT_TRUE(std::isnan(largest) ? std::isnan(amax) : amax == static_cast<float>(largest)) << amax;
        }
      }
    }
  }
}

TEST_F(CudaRows, SumsOfInfinitiesAreInfinite) {
  RefTensor x = Filled({2, 5000}, 1);
  x.data[17] = kInf;
  x.data[5003] = kInf;
  x.data[7003] = -kInf;
  const std::vector<double> y =
      Results(OpKind::kReduceSum, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}}, {{kF, x.shape}}, {x});
  EXPECT_EQ(y[0], kInf);
  EXPECT_TRUE(std::isnan(y[1]));
}

// One unit in the last place of the values is a fifth of their deviation.
TEST_F(CudaRows, VarianceOfLargeNearlyEqualValues) {
  const double base = 0x1p20;
  RefTensor x = Filled({4096, 4});
  for (int64_t i = 0; i < x.size(); ++i) x.data[i] = base + 0.125 * static_cast<double>(i / 4 % 16);
  const NodeDesc desc = Describe(OpKind::kBatchNormStatistics, {{"epsilon", 1e-5}}, {{kF, x.shape}, {kF, {4}}});
  const std::vector<Tensor> results = Run(desc, {x, Filled({4}, 1)});
  for (double var : FromTensor(results[1].view()).data) EXPECT_NEAR(var, 0.125 * 0.125 * 255.0 / 12, 1e-6);
}

// Of sums in FloatPair a variance overflows where float does.
TEST(InverseDeviation, IsNaNOfAVarianceThatOverflowed) {
  for (double variance : {kInf, kNaN}) {
    EXPECT_TRUE(std::isnan(cuda::InverseDeviation<float>(variance, 1e-5))) << variance;
    EXPECT_TRUE(std::isnan(cuda::InverseDeviation<double>(variance, 1e-5))) << variance;
  }
  EXPECT_TRUE(std::isnan(cuda::InverseDeviation<float>(1e39, 1e-5)));
  EXPECT_EQ(cuda::InverseDeviation<double>(0x1p200, 1e-5), 0x1p-100f);
}

TEST(InverseDeviation, TakesAVarianceBelowZeroForZero) {
  for (double variance : {0.0, -1e-5, -1e9}) {
    EXPECT_EQ(cuda::InverseDeviation<float>(variance, 0x1p-10), 32);
    EXPECT_EQ(cuda::InverseDeviation<double>(variance, 0x1p-10), 32);
  }
  EXPECT_EQ(cuda::InverseDeviation<float>(0.25, 0), 2);
}

// What GPUs with slow double use: each sum loses at most a 2^-46th, whatever cancels.
TEST(FloatPair, KeepsTwiceAFloatsDigits) {
  Random random(5);
  cuda::FloatPair sum, squares;
  double expected = 0, expected_squares = 0, magnitude = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(random.Uniform(-1, 1) * std::exp2(static_cast<double>(random.Below(20))));
    const auto shift = static_cast<float>(random.Uniform(0, 1000));
    const auto difference = cuda::DifferenceOf<cuda::FloatPair>(x, shift);
    const double exact = static_cast<double>(x) - static_cast<double>(shift);
    ASSERT_NEAR(cuda::ToDouble(difference), exact, std::fabs(exact) * 0x1p-47);
    sum += difference;
    squares += difference * difference;
    expected += exact;
    expected_squares += exact * exact;
    magnitude += std::fabs(exact);
  }
  EXPECT_NEAR(cuda::ToDouble(sum), expected, magnitude * 0x1p-40);
  EXPECT_NEAR(cuda::ToDouble(squares), expected_squares, expected_squares * 0x1p-40);
}

TEST(FloatPair, KeepsInfinities) {
  cuda::FloatPair sum(1.0f);
  sum += cuda::FloatPair(std::numeric_limits<float>::infinity());
  sum += cuda::FloatPair(2.0f);
  EXPECT_EQ(cuda::ToDouble(sum), kInf);
  sum += cuda::FloatPair(-std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cuda::ToDouble(sum)));
}

}  // namespace
}  // namespace ampd::testing
