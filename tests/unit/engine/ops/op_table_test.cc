// Shape and dtype rules: what each op gives, and what it refuses in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/ops/op_def.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;
using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

constexpr DType F32 = DType::kF32, F16 = DType::kF16, I32 = DType::kI32, I64 = DType::kI64, U8 = DType::kU8;

struct Case {
  OpKind op;
  std::vector<TensorType> inputs;
  ir::Attributes attributes;
  std::vector<TensorType> outputs;  // expected when `error` is empty
  std::string error;
};

const ir::Attributes kWindow{{"size", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{0, 0, 0, 0}}};
const ir::Attributes kConv{{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 2}}};

ir::Attributes With(ir::Attributes attributes, const std::string& name, ir::Attribute value) {
  attributes.Set(name, std::move(value));
  return attributes;
}

std::vector<Case> Cases() {
  return {
      {OpKind::kCast, {{F32, {3}}}, {{"dtype", std::string("f16")}}, {{F16, {3}}}, ""},
      {OpKind::kCast, {{I32, {3}}}, {{"dtype", std::string("bool")}}, {{DType::kBool, {3}}}, ""},
      {OpKind::kCast, {{F32, {3}}}, {{"dtype", std::string("i16")}}, {}, "dtype is \"i16\""},
      {OpKind::kCast,
       {{F32, {3}}},
       {{"dtype", std::string("f16")}, {"gradient_dtype", std::string("i32")}},
       {},
       "gradient_dtype is \"i32\""},
      {OpKind::kReshape, {{F16, {2, 6}}}, {{"shape", Ints{3, 4}}}, {{F16, {3, 4}}}, ""},
      {OpKind::kReshape, {{F16, {2, 6}}}, {{"shape", Ints{5, 4}}}, {}, "[2, 6] does not fit into [5, 4]"},
      {OpKind::kReshape, {{F16, {2, 6}}}, {{"shape", Ints{-3, -4}}}, {}, "extent below 1"},
      {OpKind::kAdd, {{F32, {2, 3}}, {F32, {2, 3}}}, {}, {{F32, {2, 3}}}, ""},
      {OpKind::kAdd,
       {{F32, {2, 3}}, {F32, {3, 2}}},
       {},
       {},
       "input 1 has shape [3, 2], does not broadcast with [2, 3]"},
      {OpKind::kAdd, {{F32, {2, 3}}, {F16, {2, 3}}}, {}, {}, "input 1 is f16, must be f32 as input 0"},
      {OpKind::kAdd, {{F32, {2, 3}}}, {}, {}, "has 1 inputs, takes 2"},
      {OpKind::kMul, {{I32, {2, 1, 3}}, {I32, {4, 1}}}, {}, {{I32, {2, 4, 3}}}, ""},
      {OpKind::kMul, {{F16, {}}, {F16, {4, 1}}}, {}, {{F16, {4, 1}}}, ""},
      {OpKind::kMul, {{F32, {int64_t{1} << 40, 1}}, {F32, {1, int64_t{1} << 40}}}, {}, {}, "is empty or too large"},
      {OpKind::kPow, {{F16, {3}}, {F16, {3}}}, {}, {}, "input 0 is f16, must be f32"},
      {OpKind::kGelu, {{F16, {3}}}, {{"approximate", std::string("erf")}}, {}, "approximate is \"erf\""},
      {OpKind::kElu, {{F32, {3}}}, {{"alpha", std::nan("")}}, {}, "alpha is nan"},
      {OpKind::kClip, {{F32, {3}}}, {{"min", std::nan("")}}, {}, "min is not a number"},
      {OpKind::kSiluGrad, {{F32, {3}}, {F32, {4}}}, {}, {}, "input 1 has shape [4], needs [3]"},
      {OpKind::kLess, {{I64, {3, 1}}, {I64, {5}}}, {}, {{DType::kBool, {3, 5}}}, ""},
      {OpKind::kWhere, {{DType::kBool, {3, 1}}, {F16, {5}}, {F16, {}}}, {}, {{F16, {3, 5}}}, ""},
      {OpKind::kWhere, {{I32, {3, 1}}, {F16, {5}}, {F16, {}}}, {}, {}, "input 0 is i32, must be bool"},
      {OpKind::kReduceSum, {{F32, {2, 3, 4}}}, {{"axes", Ints{0, -1}}}, {{F32, {3}}}, ""},
      {OpKind::kReduceSum,
       {{F32, {2, 3, 4}}},
       {{"axes", Ints{0, -1}}, {"keepdims", int64_t{1}}},
       {{F32, {1, 3, 1}}},
       ""},
      {OpKind::kReduceSum, {{F32, {2, 3, 4}}}, {{"axes", Ints{3}}}, {}, "each must be in [-3, 3) and stand once"},
      {OpKind::kReduceSum, {{F32, {2, 3, 4}}}, {{"axes", Ints{1, -2}}}, {}, "each must be in [-3, 3) and stand once"},
      {OpKind::kReduceMax, {{F16, {2, 3}}}, {}, {{F16, {}}}, ""},
      {OpKind::kSumTo, {{F16, {2, 3}}}, {{"shape", Ints{3}}, {"dtype", std::string("f32")}}, {{F32, {3}}}, ""},
      {OpKind::kSumTo,
       {{F16, {2, 3}}},
       {{"shape", Ints{2}}, {"dtype", std::string("f32")}},
       {},
       "[2, 3] cannot be summed to [2]"},
      {OpKind::kBroadcastTo, {{I64, {3, 1}}}, {{"shape", Ints{2, 3, 4}}}, {{I64, {2, 3, 4}}}, ""},
      {OpKind::kBroadcastTo, {{I64, {3}}}, {{"shape", Ints{3, 4}}}, {}, "[3] does not broadcast to [3, 4]"},
      {OpKind::kBroadcastTo, {{I64, {1}}}, {{"shape", Ints{int64_t{1} << 62, 8}}}, {}, "is empty or too large"},
      {OpKind::kTranspose, {{F32, {2, 3, 4}}}, {{"perm", Ints{2, 0, 1}}}, {{F32, {4, 2, 3}}}, ""},
      {OpKind::kTranspose, {{F32, {2, 3, 4}}}, {{"perm", Ints{2, 0, 2}}}, {}, "must hold each of the 3 axes once"},
      {OpKind::kTranspose, {{F32, {2, 3, 4}}}, {{"perm", Ints{3, 0, 1}}}, {}, "must hold each of the 3 axes once"},
      {OpKind::kSlice, {{F32, {9}}}, {{"starts", Ints{7}}, {"ends", Ints{0}}, {"steps", Ints{-3}}}, {{F32, {3}}}, ""},
      {OpKind::kSlice, {{F32, {9}}}, {{"starts", Ints{7}}, {"ends", Ints{10}}, {"steps", Ints{1}}}, {}, "outside"},
      {OpKind::kSlice, {{F32, {9}}}, {{"starts", Ints{7}}, {"ends", Ints{8}}, {"steps", Ints{0}}}, {}, "picks nothing"},
      {OpKind::kSlice,
       {{F32, {9}}},
       {{"starts", Ints{8}}, {"ends", Ints{-1}}, {"steps", Ints{std::numeric_limits<int64_t>::min()}}},
       {{F32, {1}}},
       ""},
      {OpKind::kSlice, {{F32, {9}}}, {{"starts", Ints{7}}}, {}, "need 1 numbers each"},
      {OpKind::kConcat, {{U8, {2, 3}}, {U8, {2, 1}}, {U8, {2, 2}}}, {{"axis", int64_t{-1}}}, {{U8, {2, 6}}}, ""},
      {OpKind::kConcat, {{U8, {2, 3}}, {U8, {3, 3}}}, {{"axis", int64_t{1}}}, {}, "does not continue [2, 3]"},
      {OpKind::kConcat, {{U8, {2, 3}}}, {{"axis", int64_t{2}}}, {}, "axis is 2, must be in [-2, 2)"},
      {OpKind::kGather, {{F16, {5, 3}}, {I32, {2, 4}}}, {{"axis", int64_t{1}}}, {{F16, {5, 2, 4}}}, ""},
      {OpKind::kGather, {{F16, {5, 3}}, {I64, {2}}}, {{"axis", int64_t{1}}}, {}, "input 1 is i64, must be i32"},
      {OpKind::kGather, {{F16, {}}, {I32, {2}}}, {}, {}, "axis is 0, must be in [0, 0)"},
      {OpKind::kDropout, {{F32, {2, 3}}}, {{"rate", 1.0}}, {}, "rate is 1, must be in [0, 1)"},
      {OpKind::kMatmul, {{F32, {2, 3}}, {F32, {3, 5}}}, {}, {{F32, {2, 5}}}, ""},
      {OpKind::kMatmul,
       {{F32, {3, 2}}, {F32, {5, 3}}},
       {{"transpose_a", int64_t{1}}, {"transpose_b", int64_t{1}}},
       {{F32, {2, 5}}},
       ""},
      {OpKind::kMatmul, {{F32, {2, 3}}, {F32, {4, 5}}}, {}, {}, "inner extents differ: [2, 3] and [4, 5] (3 and 4)"},
      {OpKind::kMatmul, {{F32, {2, 3, 1}}, {F32, {4, 5}}}, {}, {}, "inner extents differ"},
      {OpKind::kMatmul, {{F32, {3}}, {F32, {3, 5}}}, {}, {}, "needs 2 axes or more"},
      {OpKind::kMatmul, {{F32, {7, 1, 2, 3}}, {F32, {4, 3, 5}}}, {}, {{F32, {7, 4, 2, 5}}}, ""},
      {OpKind::kMatmul, {{F32, {7, 2, 3}}, {F32, {4, 3, 5}}}, {}, {}, "[7, 2, 3] and [4, 3, 5] do not broadcast"},
      {OpKind::kBiasAdd, {{F16, {2, 3}}, {F16, {3}}}, {}, {{F16, {2, 3}}}, ""},
      {OpKind::kBiasAdd, {{F16, {2, 3}}, {F16, {2}}}, {}, {}, "needs [3]"},
      {OpKind::kBiasAddGrad, {{F16, {2, 3}}}, {}, {{F32, {3}}}, ""},
      // (7 + 2 - 3) / 2 + 1 = 4 and (8 + 2 - 3) / 1 + 1 = 8.
      {OpKind::kConv2d, {{F32, {2, 7, 8, 3}}, {F32, {5, 3, 3, 3}}}, kConv, {{F32, {2, 4, 8, 5}}}, ""},
      {OpKind::kConv2d, {{F32, {2, 7, 8, 3}}, {F32, {5, 3, 3, 4}}}, kConv, {}, "input has 3 channels, filters take 4"},
      {OpKind::kConv2d, {{F32, {2, 7, 8, 3}}, {F32, {5, 10, 3, 3}}}, kConv, {}, "larger than the padded input [9, 10]"},
      {OpKind::kConv2d,
       {{F32, {2, 7, 8, 6}}, {F32, {4, 3, 3, 3}}},
       With(With(kConv, "groups", int64_t{2}), "dilations", Ints{2, 3}),
       {{F32, {2, 3, 4, 4}}},
       ""},
      {OpKind::kConv2d,
       {{F32, {2, 7, 8, 6}}, {F32, {4, 3, 3, 3}}},
       With(kConv, "groups", int64_t{4}),
       {},
       "are not whole 4 groups"},
      {OpKind::kConv2d,
       {{F32, {2, 7, 8, 6}}, {F32, {4, 3, 3, 3}}},
       With(kConv, "groups", int64_t{0}),
       {},
       "groups is 0"},
      {OpKind::kConv2d,
       {{F32, {2, 7, 8, 6}}, {F32, {4, 3, 3, 6}}},
       With(kConv, "dilations", Ints{1, int64_t{1} << 62}),
       {},
       "above 2^30"},
      // (4 - 1) * 2 - 1 - 1 + 3 + 1 = 8 and (5 - 1) * 1 - 0 - 2 + 3 + 0 = 5.
      {OpKind::kConvTranspose2d,
       {{F16, {2, 4, 5, 4}}, {F16, {4, 3, 3, 3}}},
       With(With(kConv, "groups", int64_t{2}), "output_padding", Ints{1, 0}),
       {{F16, {2, 8, 5, 6}}},
       ""},
      {OpKind::kConvTranspose2d,
       {{F32, {2, 4, 5, 4}}, {F32, {4, 3, 3, 3}}},
       With(kConv, "output_padding", Ints{0, 1}),
       {},
       "must be below the stride [2, 1]"},
      {OpKind::kConvTranspose2d, {{F32, {2, 4, 5, 4}}, {F32, {5, 3, 3, 3}}}, kConv, {}, "filters take 5"},
      {OpKind::kConv2d, {{F32, {2, 7, 8}}, {F32, {5, 3, 3, 3}}}, kConv, {}, "needs an image"},
      {OpKind::kConv2d,
       {{F32, {2, 7, 8, 3}}, {F32, {5, 3, 3, 3}}},
       With(kConv, "strides", Ints{0, 1}),
       {},
       "must be >= 1"},
      {OpKind::kConv2dGradInput,
       {{F32, {2, 4, 8, 5}}, {F32, {5, 3, 3, 3}}},
       With(kConv, "input_shape", Ints{2, 7, 8, 3}),
       {{F32, {2, 7, 8, 3}}},
       ""},
      {OpKind::kConv2dGradInput,
       {{F32, {2, 4, 7, 5}}, {F32, {5, 3, 3, 3}}},
       With(kConv, "input_shape", Ints{2, 7, 8, 3}),
       {},
       "needs [2, 4, 8, 5]"},
      {OpKind::kConv2dGradFilter,
       {{F16, {2, 4, 8, 5}}, {F16, {2, 7, 8, 3}}},
       With(kConv, "filter_shape", Ints{5, 3, 3, 3}),
       {{F16, {5, 3, 3, 3}}},
       ""},
      {OpKind::kMaxPool2d, {{F32, {1, 5, 4, 2}}}, kWindow, {{F32, {1, 2, 2, 2}}}, ""},
      {OpKind::kMaxPool2d,
       {{F32, {1, 5, 4, 2}}},
       With(kWindow, "pads", Ints{2, 0, 0, 0}),
       {},
       "reach the window's size"},
      {OpKind::kMaxPool2d, {{DType::kU8, {1, 5, 4, 2}}}, kWindow, {{DType::kU8, {1, 2, 2, 2}}}, ""},
      {OpKind::kMaxPool2d, {{F32, {1, 5, 4, 2}}}, With(kWindow, "dilations", Ints{3, 1}), {{F32, {1, 1, 2, 2}}}, ""},
      {OpKind::kMaxPool2dIndex, {{F32, {1, 5, 4, 2}}, {F32, {1, 2, 2, 2}}}, kWindow, {{I32, {1, 2, 2, 2}}}, ""},
      {OpKind::kAvgPool2d,
       {{F32, {1, 5, 4, 2}}},
       With(kWindow, "ceil_pads", Ints{1, 0}),
       {},
       "ceil_pads [1, 0] are no part of the pads"},
      {OpKind::kMaxPool2dGrad,
       {{F32, {1, 2, 2, 2}}, {F32, {1, 5, 4, 2}}, {F32, {1, 2, 2, 2}}},
       kWindow,
       {{F32, {1, 5, 4, 2}}},
       ""},
      {OpKind::kAvgPool2dGrad,
       {{F32, {1, 2, 2, 2}}},
       With(kWindow, "input_shape", Ints{1, 5, 4, 2}),
       {{F32, {1, 5, 4, 2}}},
       ""},
      {OpKind::kGlobalAvgPool, {{F16, {2, 5, 4, 3}}}, {}, {{F16, {2, 3}}}, ""},
      {OpKind::kGlobalAvgPoolGrad, {{F16, {2, 3}}}, {{"input_shape", Ints{2, 5, 4, 3}}}, {{F16, {2, 5, 4, 3}}}, ""},
      {OpKind::kBatchNorm,
       {{F16, {2, 5, 4, 3}}, {F32, {3}}, {F32, {3}}},
       {},
       {{F16, {2, 5, 4, 3}}, {F32, {3}}, {F32, {3}}},
       ""},
      {OpKind::kBatchNorm, {{F16, {2, 5, 4, 3}}, {F16, {3}}, {F32, {3}}}, {}, {}, "input 1 is f16, must be f32"},
      {OpKind::kBatchNorm, {{F16, {2, 5, 4, 3}}, {F32, {4}}, {F32, {3}}}, {}, {}, "needs [3]"},
      {OpKind::kBatchNormGrad,
       {{F16, {2, 3}}, {F16, {2, 3}}, {F32, {3}}, {F32, {3}}, {F32, {3}}},
       {},
       {{F16, {2, 3}}, {F32, {3}}, {F32, {3}}},
       ""},
      {OpKind::kBatchNormUpdate,
       {{F32, {3}}, {F32, {3}}, {F32, {3}}, {F32, {3}}, {I64, {}}},
       {{"count", int64_t{6}}},
       {},
       ""},
      {OpKind::kBatchNormUpdate,
       {{F32, {3}}, {F32, {3}}, {F32, {3}}, {F32, {3}}, {F32, {}}},
       {{"count", int64_t{6}}},
       {},
       "must be i64[]"},
      {OpKind::kLayerNorm,
       {{F16, {2, 5, 4}}, {F32, {5, 4}}, {F32, {5, 4}}},
       {{"axis", int64_t{1}}, {"epsilon", 1e-5}},
       {{F16, {2, 5, 4}}, {F32, {2, 1, 1}}, {F32, {2, 1, 1}}},
       ""},
      {OpKind::kLayerNorm, {{F16, {2, 5, 4}}}, {{"axis", int64_t{3}}, {"epsilon", 1e-5}}, {}, "axis is 3"},
      {OpKind::kLayerNorm, {{F16, {2, 5}}}, {{"axis", int64_t{1}}}, {}, "epsilon is -1"},
      {OpKind::kLayerNorm,
       {{F16, {2, 5}}, {F32, {2}}},
       {{"axis", int64_t{1}}, {"epsilon", 1e-5}},
       {},
       "input 1 has shape [2], needs [5]"},
      {OpKind::kRmsNormGrad,
       {{F16, {2, 5}}, {F16, {2, 5}}, {F32, {2, 1}}, {F32, {5}}},
       {{"axis", int64_t{1}}},
       {{F16, {2, 5}}, {F32, {5}}},
       ""},
      {OpKind::kGroupNorm,
       {{F16, {2, 5, 4, 6}}},
       {{"groups", int64_t{3}}, {"epsilon", 1e-5}},
       {{F16, {2, 5, 4, 6}}, {F32, {2, 3}}, {F32, {2, 3}}},
       ""},
      {OpKind::kGroupNorm,
       {{F16, {2, 5, 4, 6}}},
       {{"groups", int64_t{4}}, {"epsilon", 1e-5}},
       {},
       "6 channels are not"},
      {OpKind::kSoftmax, {{F32, {4, 3}}}, {{"axis", int64_t{0}}}, {{F32, {4, 3}}}, ""},
      {OpKind::kLogSoftmax, {{F16, {4, 3}}}, {{"axis", int64_t{0}}}, {}, "must be f32"},
      {OpKind::kAttention,
       {{F16, {2, 7, 12}}, {F16, {2, 5, 6}}, {F16, {2, 5, 8}}, {DType::kBool, {7, 5}}},
       {{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}},
       {{F16, {2, 7, 16}}, {F32, {2, 4, 7}}},
       ""},
      {OpKind::kAttention,
       {{F32, {2, 4, 7, 3}}, {F32, {2, 2, 5, 3}}, {F32, {2, 2, 5, 6}}},
       {},
       {{F32, {2, 4, 7, 6}}, {F32, {2, 4, 7}}},
       ""},
      {OpKind::kAttention,
       {{F32, {2, 7, 12}}, {F32, {2, 5, 12}}, {F32, {2, 5, 12}}},
       {{"heads", int64_t{5}}},
       {},
       "features are not whole 5"},
      {OpKind::kAttention,
       {{F32, {2, 7, 12}}, {F32, {2, 5, 12}}, {F32, {2, 5, 12}}, {F32, {6, 5}}},
       {{"heads", int64_t{4}}},
       {},
       "mask [6, 5] does not broadcast to the scores [2, 4, 7, 5]"},
      {OpKind::kAttention,
       {{F32, {2, 7, 12}}, {F32, {2, 5, 12}}, {F32, {2, 5, 12}}, {F16, {7, 5}}},
       {{"heads", int64_t{4}}},
       {},
       "must be bool or f32"},
      {OpKind::kAttention,
       {{F32, {2, 7, 12}}, {F32, {2, 5, 12}}, {F32, {2, 6, 12}}},
       {{"heads", int64_t{4}}},
       {},
       "do not fit together"},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {4, 3}}, {I32, {4}}}, {}, {{F32, {4}}, {F32, {4}}}, ""},
      {OpKind::kSoftmaxCrossEntropy,
       {{F32, {4, 2, 3}}, {I32, {4, 2}}, {F32, {3}}},
       {{"smoothing", 0.1}},
       {{F32, {4, 2}}, {F32, {4, 2}}},
       ""},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {4, 2, 3}}, {I32, {4}}}, {}, {}, "input 1 has shape [4], needs [4, 2]"},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {4, 3}}, {I32, {4}}, {F32, {4}}}, {}, {}, "needs [3]"},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {3}}, {I32, {}}}, {}, {}, "need [batch, ..., classes]"},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {4, 3}}, {I32, {4}}}, {{"smoothing", 1.5}}, {}, "smoothing is 1.5"},
      {OpKind::kSoftmaxCrossEntropyGrad, {{F32, {4}}, {F32, {4, 3}}, {I32, {4}}}, {}, {{F32, {4, 3}}}, ""},
      {OpKind::kSoftmaxCrossEntropyGrad, {{F32, {3}}, {F32, {4, 3}}, {I32, {4}}}, {}, {}, "needs [4]"},
      {OpKind::kSoftCrossEntropy, {{F32, {4, 3}}, {F32, {4, 3}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kSoftCrossEntropy, {{F32, {4, 3}}, {F32, {4}}}, {}, {}, "needs [4, 3]"},
      {OpKind::kNormalizedSum, {{F32, {4, 3}}, {F32, {4, 3}}}, {}, {{F32, {}}}, ""},
      {OpKind::kNormalizedSum, {{F32, {4, 3}}, {F32, {4}}}, {}, {}, "needs [4, 3]"},
      {OpKind::kL1Loss, {{F32, {4, 3, 2}}, {F32, {4, 3, 2}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kL1LossGrad, {{F32, {4}}, {F32, {4, 3}}, {F32, {4, 3}}}, {}, {{F32, {4, 3}}}, ""},
      {OpKind::kSmoothL1Loss, {{F32, {4}}, {F32, {4}}}, {{"beta", -1.0}}, {}, "beta is -1"},
      {OpKind::kHingeLoss, {{F32, {}}, {F32, {}}}, {}, {}, "no batch axis"},
      {OpKind::kSigmoidCrossEntropy, {{F32, {4, 3}}, {F32, {4, 3}}, {F32, {3}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kSigmoidCrossEntropy, {{F32, {4, 3}}, {F32, {4, 3}}, {F32, {4}}}, {}, {}, "needs [3]"},
      {OpKind::kCtcLoss, {{F32, {4, 9, 3}}, {I32, {4, 2}}, {I32, {4}}, {I32, {4}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kCtcLoss,
       {{F32, {4, 9, 3}}, {I32, {4, 2}}, {I32, {4}}, {I32, {4}}},
       {{"blank", int64_t{3}}},
       {},
       "blank is 3, must be a class, 0 to 2"},
      {OpKind::kCtcLoss, {{F32, {4, 9, 3}}, {I32, {3, 2}}, {I32, {4}}, {I32, {4}}}, {}, {}, "needs [4, 2]"},
      {OpKind::kCtcLoss,
       {{F32, {1, int64_t{1} << 40, 1}}, {I32, {1, int64_t{1} << 40}}, {I32, {1}}, {I32, {1}}},
       {},
       {},
       "are too many"},
      {OpKind::kLstm,
       {{F16, {2, 5, 3}}, {F16, {16, 3}}, {F16, {16, 4}}},
       {{"direction", std::string("forward")}},
       {{F16, {2, 5, 4}}, {F16, {2, 4}}, {F32, {2, 4}}, {F16, {2, 5, 16}}, {F16, {2, 5, 4}}},
       ""},
      {OpKind::kLstm, {{F32, {2, 5, 3}}, {F32, {16, 3}}, {F32, {16, 4}}}, {}, {}, "direction is \"\""},
      {OpKind::kLstm,
       {{F32, {2, 5, 3}}, {F32, {12, 3}}, {F32, {16, 4}}},
       {{"direction", std::string("reverse")}},
       {},
       "input 1 has shape [12, 3], needs [16, 3]"},
      {OpKind::kLstm,
       {{F32, {2, 5, 3}}, {F32, {16, 3}}, {F32, {16, 4}}, {F32, {16}}},
       {{"direction", std::string("forward")}},
       {},
       "has 4 inputs; optional ones are b_ih b_hh"},
      {OpKind::kGru,
       {{F32, {2, 5, 3}}, {F32, {12, 3}}, {F32, {12, 4}}, {F32, {12}}, {F32, {12}}, {I32, {3}}},
       {{"direction", std::string("forward")}},
       {},
       "input 5 has shape [3], needs [2]"},
      {OpKind::kGru,
       {{F32, {2, 5, 3}}, {F32, {12, 3}}, {F32, {12, 4}}},
       {{"direction", std::string("forward")}},
       {{F32, {2, 5, 4}}, {F32, {2, 4}}, {F32, {2, 5, 16}}},
       ""},
      {OpKind::kTopKEqual, {{F32, {4, 3}}, {I32, {4}}}, {{"k", int64_t{3}}}, {{F32, {4}}}, ""},
      {OpKind::kTopKEqual, {{F32, {4, 3}}, {I32, {4}}}, {{"k", int64_t{4}}}, {}, "k is 4, must be 1 to 3"},
      {OpKind::kLabelCounts, {{I32, {4, 2}}}, {{"classes", int64_t{3}}}, {{F32, {4, 2}}}, ""},
      {OpKind::kLabelCounts, {{I32, {4, 2}}}, {}, {}, "classes is 0"},
      {OpKind::kSoftmaxCrossEntropy, {{F16, {4, 3}}, {I32, {4}}}, {}, {}, "input 0 is f16, must be f32"},
      {OpKind::kSoftmaxCrossEntropy, {{F32, {4, 3}}, {I64, {4}}}, {}, {}, "input 1 is i64, must be i32"},
      {OpKind::kSquaredError, {{F32, {4, 3}}, {F32, {4, 3}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kRandomNormal, {}, {{"shape", Ints{4, 3}}, {"stream", int64_t{1}}}, {{F32, {4, 3}}}, ""},
      {OpKind::kRandomUniform, {}, {{"shape", Ints{4}}, {"stream", int64_t{1}}}, {{F32, {4}}}, ""},
      {OpKind::kRandomUniform, {}, {}, {}, "shape has no batch axis"},
      {OpKind::kRandomNormal, {}, {{"shape", Ints{4, 0}}}, {}, "extents must be >= 1"},
      {OpKind::kRandomNormal, {}, {{"shape", Ints{1 << 30, 1 << 30, 1 << 30}}}, {}, "more than 10^12 elements"},
      {OpKind::kReduceMean, {{F32, {4}}}, {}, {{F32, {}}}, ""},
      {OpKind::kReduceMeanGrad, {{F32, {}}}, {{"shape", Ints{4}}}, {{F32, {4}}}, ""},
      {OpKind::kArgmaxEqual, {{F32, {4, 3}}, {I32, {4}}}, {}, {{F32, {4}}}, ""},
      {OpKind::kAccumulateGrad, {{F16, {4, 3}}, {F32, {4, 3}}}, {}, {}, ""},
      {OpKind::kAccumulateGrad, {{F16, {4, 3}}, {F32, {3, 4}}}, {}, {}, "needs [3, 4]"},
  };
}

TEST(OpTable, EveryKindHasARow) {
  for (OpKind kind : ir::kAllOpKinds) {
    const OpDef& def = GetOpDef(kind);
    EXPECT_EQ(def.kind, kind) << ir::OpName(kind);
    EXPECT_NE(def.infer, nullptr) << ir::OpName(kind);
    const bool draws = kind == OpKind::kRandomNormal || kind == OpKind::kRandomUniform;
    EXPECT_EQ(def.inputs.empty(), draws) << ir::OpName(kind);
    EXPECT_EQ(def.output_suffixes.empty(), def.has_effects) << ir::OpName(kind);
  }
}

TEST(OpTable, Rules) {
  for (const Case& c : Cases()) {
    const std::string what = std::string(ir::OpName(c.op)) + " " + c.error;
    auto types = InferTypes(c.op, {"n1", c.attributes, c.inputs});
    if (c.error.empty()) {
      ASSERT_TRUE(types.ok()) << what << types.status();
      EXPECT_EQ(*types, c.outputs) << what;
      EXPECT_GE(CostOf(c.op, {"n1", c.attributes, c.inputs}, *types).flops, 0) << what;
    } else {
      ASSERT_FALSE(types.ok()) << what;
      EXPECT_EQ(types.status().code(), absl::StatusCode::kInvalidArgument) << what;
      EXPECT_THAT(std::string(types.status().message()), HasSubstr(c.error));
      EXPECT_THAT(std::string(types.status().message()), HasSubstr("node n1"));
    }
  }
}

TEST(OpTable, CostOfAConvolution) {
  const std::vector<TensorType> inputs{{F16, {2, 7, 8, 3}}, {F16, {5, 3, 3, 3}}};
  const OpCall call{"n", kConv, inputs};
  const Cost cost = CostOf(OpKind::kConv2d, call, {{F16, {2, 4, 8, 5}}});
  EXPECT_EQ(cost.flops, 2.0 * (2 * 4 * 8 * 5) * (3 * 3 * 3));
  EXPECT_EQ(cost.bytes, 2.0 * (2 * 7 * 8 * 3 + 5 * 3 * 3 * 3 + 2 * 4 * 8 * 5));
}

}  // namespace
}  // namespace ampd::ops
