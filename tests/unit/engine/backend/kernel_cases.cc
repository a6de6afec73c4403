#include "tests/unit/engine/backend/kernel_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/ops/op_def.h"
#include "tests/support/op_rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;
using Signature = runtime::KernelTable::Signature;

using Shapes = OpShapes;

struct WindowShape {
  Shape image;   // [N,H,W,C]
  Shape filter;  // [K,R,S,C]; R and S are a pool's size
  Ints strides;
  Ints pads;
  Ints dilations = {};  // empty: without the attribute
  int64_t groups = 1;
  Attributes more = {};
};

Shape OutputOf(const WindowShape& w) {
  const auto extent = [&](int axis) {
    const int64_t dilation = w.dilations.empty() ? 1 : w.dilations[axis];
    const int64_t span = (w.filter[axis + 1] - 1) * dilation + 1;
    return (w.image[axis + 1] + w.pads[axis] + w.pads[axis + 2] - span) / w.strides[axis] + 1;
  };
  return {w.image[0], extent(0), extent(1), w.filter[0]};
}

std::vector<WindowShape> ConvShapes() {
  return {
      {{2, 5, 6, 3}, {4, 3, 3, 3}, {1, 1}, {1, 1, 1, 1}},
      {{1, 7, 5, 17}, {19, 3, 2, 17}, {2, 1}, {0, 0, 1, 1}},  // more padding below and right
      {{3, 4, 4, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0, 0, 0}},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0, 0, 0}},
      {{1, 1, 1, 5}, {7, 3, 3, 5}, {1, 1}, {1, 1, 1, 1}},  // filter larger than the image
      {{2, 9, 9, 4}, {8, 2, 2, 4}, {3, 4}, {0, 0, 0, 0}},  // stride larger than the filter
      {{2, 8, 8, 16}, {32, 5, 5, 16}, {1, 1}, {2, 2, 2, 2}},
      {{2, 10, 9, 32}, {16, 3, 3, 32}, {2, 2}, {0, 0, 1, 1}},
      {{4, 6, 6, 64}, {64, 1, 1, 64}, {2, 2}, {0, 0, 0, 0}},
      {{3, 12, 12, 1}, {32, 5, 5, 1}, {1, 1}, {2, 2, 2, 2}},
      {{1, 4, 3, 2}, {3, 2, 3, 2}, {1, 1}, {3, 2, 0, 1}},  // padding larger than the filter on one side
      {{2, 9, 8, 3}, {4, 3, 2, 3}, {1, 1}, {1, 0, 2, 1}, {2, 3}},
      {{2, 7, 9, 6}, {4, 3, 3, 3}, {2, 1}, {1, 2, 0, 1}, {}, 2},
      {{2, 6, 5, 16}, {16, 3, 3, 1}, {1, 1}, {1, 1, 1, 1}, {}, 16},  // one channel a group
      {{1, 9, 9, 4}, {8, 3, 3, 1}, {2, 2}, {2, 2, 2, 2}, {2, 2}, 4},
      {{2, 12, 12, 32}, {64, 3, 3, 16}, {1, 1}, {2, 2, 2, 2}, {2, 2}, 2},
      {{1, 7, 7, 40}, {48, 7, 7, 40}, {1, 1}, {3, 3, 3, 3}},  // so much to compute that a layout of oneDNN's own pays
  };
}

std::vector<WindowShape> PoolShapes() {
  return {
      {{2, 4, 4, 3}, {3, 2, 2, 3}, {2, 2}, {0, 0, 0, 0}},
      {{1, 5, 7, 17}, {17, 3, 2, 17}, {1, 2}, {0, 0, 1, 1}},
      {{3, 1, 1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0, 0, 0}},
      {{2, 6, 5, 1}, {1, 3, 3, 1}, {2, 2}, {1, 1, 1, 1}},
      {{2, 9, 9, 8}, {8, 2, 2, 8}, {3, 4}, {0, 0, 0, 0}},
      {{5, 28, 28, 32}, {32, 2, 2, 32}, {2, 2}, {0, 0, 0, 0}},
      {{2, 9, 8, 5}, {5, 3, 2, 5}, {1, 2}, {2, 1, 1, 2}, {2, 3}},
      {{2, 7, 6, 3}, {3, 3, 3, 3}, {2, 2}, {1, 1, 1, 1}, {}, 1, {{"count_include_pad", int64_t{1}}}},
      {{1, 6, 7, 2},
       {2, 3, 2, 2},
       {2, 3},
       {1, 0, 2, 1},
       {1, 2},
       1,
       {{"count_include_pad", int64_t{1}}, {"ceil_pads", Ints{1, 1}}}},
      {{1, 1, 1, 3}, {3, 2, 1, 3}, {1, 1}, {1, 0, 1, 0}, {2, 1}},  // its windows see nothing
  };
}

std::vector<Shapes> FromConv(OpKind op) {
  std::vector<Shapes> list;
  for (const WindowShape& w : ConvShapes()) {
    Attributes a = {{"strides", w.strides}, {"pads", w.pads}};
    if (!w.dilations.empty()) a.Set("dilations", w.dilations);
    if (w.groups > 1) a.Set("groups", w.groups);
    const Shape y = OutputOf(w);
    if (op == OpKind::kConv2d) list.push_back({a, {w.image, w.filter}});
    if (op == OpKind::kConv2dGradInput) {
      a.Set("input_shape", Ints(w.image.begin(), w.image.end()));
      list.push_back({a, {y, w.filter}});
    }
    if (op == OpKind::kConv2dGradFilter) {
      a.Set("filter_shape", Ints(w.filter.begin(), w.filter.end()));
      list.push_back({a, {y, w.image}});
    }
  }
  return list;
}

std::vector<Shapes> FromPool(OpKind op) {
  std::vector<Shapes> list;
  for (const WindowShape& w : PoolShapes()) {
    Attributes a = w.more;
    a.Set("size", Ints{w.filter[1], w.filter[2]});
    a.Set("strides", w.strides);
    a.Set("pads", w.pads);
    if (!w.dilations.empty()) a.Set("dilations", w.dilations);
    const Shape y = OutputOf(w);
    if (op == OpKind::kMaxPool2dGrad) {
      list.push_back({a, {y, w.image, y}});
    } else if (op == OpKind::kAvgPool2dGrad) {
      a.Set("input_shape", Ints(w.image.begin(), w.image.end()));
      list.push_back({a, {y}});
    } else {
      list.push_back({a, {w.image}});
    }
  }
  return list;
}

Shape Joined(Shape batch, const Shape& matrix) {
  batch.insert(batch.end(), matrix.begin(), matrix.end());
  return batch;
}

std::vector<Shapes> Matmuls() {
  std::vector<Shapes> list;
  for (const Shape& mkn :
       {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{1, 33, 10}, Shape{65, 17, 1}, Shape{2, 1, 9}, Shape{96, 130, 48},
        // What matrix units take as it is, of 8 bits too.
        Shape{64, 128, 32}}) {
    for (int64_t ta : {0, 1}) {
      for (int64_t tb : {0, 1}) {
        const Shape a = ta ? Shape{mkn[1], mkn[0]} : Shape{mkn[0], mkn[1]};
        const Shape b = tb ? Shape{mkn[2], mkn[1]} : Shape{mkn[1], mkn[2]};
        list.push_back({{{"transpose_a", ta}, {"transpose_b", tb}}, {a, b}});
        for (const auto& [batch_a, batch_b] : std::vector<std::pair<Shape, Shape>>{{{3}, {3}},
                                                                                   {{2, 3}, {}},
                                                                                   {{}, {2}},
                                                                                   {{2, 1, 3}, {4, 1}},
                                                                                   {{2, 3}, {2, 3}},
                                                                                   {{1, 2}, {3, 1}},
                                                                                   {{1}, {}}}) {
          if (mkn[0] >= 64 && mkn[2] > 1 && batch_a.size() != 2) continue;
          list.push_back({{{"transpose_a", ta}, {"transpose_b", tb}}, {Joined(batch_a, a), Joined(batch_b, b)}});
        }
      }
    }
  }
  return list;
}

const std::vector<Shape>& AnyShapes() {
  static const auto* shapes = new std::vector<Shape>{{1}, {3, 5}, {2, 3, 5, 7}, {1, 1, 1, 1}, {1025}, {50, 1500}};
  return *shapes;
}

const std::vector<Shape>& ChannelShapes() {
  static const auto* shapes = new std::vector<Shape>{{1, 1},       {5, 3},    {2, 3, 5, 7}, {1, 1, 1, 9},
                                                     {3, 1, 1, 1}, {9, 1500}, {70, 1025},   {4, 28, 28, 16}};
  return *shapes;
}

std::vector<Shapes> Elementwise(int operands) {
  std::vector<Shapes> list;
  for (const Shape& s : AnyShapes()) list.push_back({{}, std::vector<Shape>(operands, s)});
  return list;
}

std::vector<Shapes> Norms(OpKind op) {
  std::vector<Shapes> list;
  for (const Shape& s : ChannelShapes()) {
    const Shape c = {s.back()};
    const Attributes a = {{"epsilon", 1e-5}};
    if (op == OpKind::kBatchNorm) list.push_back({a, {s, c, c}});
    if (op == OpKind::kBatchNormGrad) list.push_back({a, {s, s, c, c, c}});
    if (op == OpKind::kBatchNormInference) list.push_back({a, {s, c, c, c, c}});
    if (op == OpKind::kBatchNormUpdate) {
      list.push_back({{{"momentum", 0.1}, {"count", NumElements(s) / s.back()}}, {c, c, c, c, {}}});
    }
    if (op == OpKind::kBiasAdd) list.push_back({{}, {s, c}});
    if (op == OpKind::kBiasAddGrad) list.push_back({{}, {s}});
  }
  return list;
}

std::vector<Shapes> GlobalPools(bool grad) {
  std::vector<Shapes> list;
  for (const Shape& s : {Shape{2, 3, 5, 7}, Shape{1, 1, 1, 1}, Shape{3, 2, 2, 1500}, Shape{8, 14, 14, 64}}) {
    if (grad) {
      list.push_back({{{"input_shape", Ints(s.begin(), s.end())}}, {{s[0], s[3]}}});
    } else {
      list.push_back({{}, {s}});
    }
  }
  return list;
}

std::vector<Shapes> Dropouts() {
  std::vector<Shapes> list;
  for (const Shape& s : AnyShapes()) {
    for (double rate : {0.0, 0.1, 0.5, 0.9}) list.push_back({{{"rate", rate}, {"stream", int64_t{0x89abcdef}}}, {s}});
  }
  return list;
}

std::vector<Shapes> Accumulations() {
  std::vector<Shapes> list = Elementwise(2);
  for (Shapes shapes : Elementwise(2)) {
    shapes.attributes.Set("overwrite", int64_t{1});
    list.push_back(std::move(shapes));
  }
  return list;
}

std::vector<Shapes> ShapesOf(OpKind op) {
  switch (op) {
    case OpKind::kAccumulateGrad:
      return Accumulations();
    case OpKind::kDropout:
      return Dropouts();
    case OpKind::kMatmul:
      return Matmuls();
    case OpKind::kConv2d:
    case OpKind::kConv2dGradInput:
    case OpKind::kConv2dGradFilter:
      return FromConv(op);
    case OpKind::kMaxPool2d:
    case OpKind::kMaxPool2dGrad:
    case OpKind::kAvgPool2d:
    case OpKind::kAvgPool2dGrad:
      return FromPool(op);
    case OpKind::kGlobalAvgPool:
    case OpKind::kGlobalAvgPoolGrad:
      return GlobalPools(op == OpKind::kGlobalAvgPoolGrad);
    default:
      return Norms(op);
  }
}

// Which inputs must be positive, as bits: variances and scales.
uint32_t PositiveInputs(OpKind op) {
  if (op == OpKind::kMatmul) return (1u << 2) | (1u << 3);
  if (op == OpKind::kBatchNormGrad || op == OpKind::kBatchNormInference) return 1u << 4;
  if (op == OpKind::kBatchNormUpdate) return (1u << 1) | (1u << 3);
  return 0;
}

RefTensor MakeInput(const NodeDesc& desc, size_t i, Random* random) {
  const ir::TensorType& type = desc.inputs[i];
  if (type.dtype == DType::kI64) return Filled(type.shape, 41);
  if (type.dtype == DType::kU8) {
    RefTensor bytes = Filled(type.shape);
    for (double& v : bytes.data) v = static_cast<double>(random->Below(256));
    return bytes;
  }
  if (PositiveInputs(desc.op) >> i & 1) return RandomTensor(random, type.shape, type.dtype, 0.01, 4);
  return RandomTensor(random, type.shape, type.dtype, -3, 3);
}

std::vector<RefTensor> MakeInputs(const NodeDesc& desc, Random* random) {
  std::vector<RefTensor> inputs;
  for (size_t i = 0; i < desc.inputs.size(); ++i) inputs.push_back(MakeInput(desc, i, random));
  if (desc.op == OpKind::kMaxPool2dGrad) {
    NodeDesc forward = desc;
    forward.op = OpKind::kMaxPool2d;
    forward.outputs = {desc.inputs[2]};
    inputs[2] = ReferenceOp(forward, {inputs[1]}, {})[0];
  }
  return inputs;
}

// Of a pad: to 16 bits, which one that reads its border does not.
bool Rounds(OpKind op, const Signature& signature) {
  return op == OpKind::kPad && signature.first[0] != signature.second[0];
}
bool ReadsBorder(const OpShapes& shapes) {
  const std::string mode = shapes.attributes.String("mode");
  return mode == "reflect" || mode == "edge";
}

std::vector<OpShapes> CasesFor(const OpRow& row, const Signature& signature) {
  if (ops::GetOpDef(row.op).variadic) return row.cases;
  std::vector<OpShapes> cases;
  for (const OpShapes& shapes : row.cases) {
    if (shapes.inputs.size() == signature.first.size() && !(Rounds(row.op, signature) && ReadsBorder(shapes))) {
      cases.push_back(shapes);
    }
  }
  return cases;
}

// Bilinear ops take 8-bit operands as training needs them: forward, and with a gradient on either side.
void AddFloat8Rows(std::vector<std::pair<OpKind, Signature>>* list) {
  constexpr DType f = DType::kF32, forward = DType::kF8E4M3, gradient = DType::kF8E5M2;
  std::vector<OpKind> ops;
  for (const auto& [op, signature] : *list) {
    if (ops::GetOpDef(op).bilinear && signature == Signature{{f, f}, {f}}) ops.push_back(op);
  }
  for (OpKind op : ops) {
    for (auto [a, b] : {std::pair{forward, forward}, {gradient, forward}, {forward, gradient}}) {
      list->push_back({op, {{a, b}, {f}}});
      if (op != OpKind::kMatmul) continue;
      for (DType t : {f, DType::kF16, DType::kBF16}) list->push_back({op, {{a, b, f, f}, {t}}});
    }
  }
}

}  // namespace

std::vector<std::pair<OpKind, Signature>> RequiredKernels() {
  constexpr DType f = DType::kF32;
  std::vector<std::pair<OpKind, Signature>> list = {
      {OpKind::kBatchNormUpdate, {{f, f, f, f, DType::kI64}, {}}},
      {OpKind::kBatchNormUpdate, {{f, f, f, f, DType::kI64, f}, {}}},
  };
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (OpKind op : {OpKind::kDropout, OpKind::kMaxPool2d, OpKind::kAvgPool2d, OpKind::kAvgPool2dGrad,
                      OpKind::kGlobalAvgPool, OpKind::kGlobalAvgPoolGrad}) {
      list.push_back({op, {{t}, {t}}});
    }
    for (OpKind op :
         {OpKind::kMatmul, OpKind::kBiasAdd, OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      list.push_back({op, {{t, t}, {t}}});
    }
    if (t != f) list.push_back({OpKind::kMatmul, {{t, t}, {f}}});
    list.push_back({OpKind::kBiasAddGrad, {{t}, {f}}});
    list.push_back({OpKind::kMaxPool2dGrad, {{t, t, t}, {t}}});
    list.push_back({OpKind::kBatchNorm, {{t, f, f}, {t, f, f}}});
    list.push_back({OpKind::kBatchNormGrad, {{t, t, f, f, f}, {t, f, f}}});
    list.push_back({OpKind::kBatchNormGrad, {{t, t, f, f, f, f, f}, {t, f, f}}});
    list.push_back({OpKind::kBatchNormInference, {{t, f, f, f, f}, {t}}});
    list.push_back({OpKind::kAccumulateGrad, {{t, f}, {}}});
  }
  list.push_back({OpKind::kMaxPool2d, {{DType::kU8}, {DType::kU8}}});
  for (const OpRow& row : AllOpRows()) {
    for (const Signature& signature : row.signatures) list.push_back({row.op, signature});
  }
  AddFloat8Rows(&list);
  return list;
}

std::vector<KernelCase> KernelCases(OpKind op, const Signature& signature) {
  std::vector<KernelCase> cases;
  Random random(static_cast<uint64_t>(op) + 1);
  const OpRow* row = FindOpRow(op);
  for (const OpShapes& shapes : row != nullptr ? CasesFor(*row, signature) : ShapesOf(op)) {
    const bool turned = op == OpKind::kQuantize && signature.second.size() > 2;
    if (turned && shapes.inputs[0].size() < 2) continue;
    NodeDesc desc{.op = op, .name = absl::StrCat("case", cases.size()), .attributes = shapes.attributes};
    if (op == OpKind::kCast || op == OpKind::kSumTo || op == OpKind::kEmbeddingGrad || op == OpKind::kQuantize ||
        op == OpKind::kDequantize || Rounds(op, signature))
      desc.attributes.Set("dtype", std::string(DTypeName(signature.second[0])));
    for (size_t i = 0; i < shapes.inputs.size(); ++i) {
      desc.inputs.push_back({signature.first[std::min(i, signature.first.size() - 1)], shapes.inputs[i]});
    }
    if (op == OpKind::kQuantize && signature.second.size() > 1) desc.attributes.Set("amax", int64_t{1});
    if (turned) desc.attributes.Set("turned", int64_t{1});
    if (op == OpKind::kBatchNormGrad && signature.first.size() > 5) desc.inputs.resize(7, desc.inputs.back());
    if (op == OpKind::kBatchNormUpdate && signature.first.size() > 5) desc.inputs.push_back(desc.inputs[0]);
    if (op == OpKind::kMatmul && signature.first.size() > 2) {
      desc.inputs.resize(4, {DType::kF32, {}});
      desc.attributes.Set("dtype", std::string(DTypeName(signature.second[0])));
    } else if (op == OpKind::kMatmul && IsHalf(signature.first[0]) && signature.second[0] == DType::kF32) {
      desc.attributes.Set("dtype", std::string(DTypeName(DType::kF32)));
    }
    auto outputs = ops::InferTypes(op, {desc.name, desc.attributes, desc.inputs});
    if (!outputs.ok()) {
      ADD_FAILURE() << Describe(desc) << ": " << outputs.status();
      continue;
    }
    desc.outputs = *std::move(outputs);
    std::vector<RefTensor> inputs = row != nullptr ? DrawInputs(*row, desc, &random) : MakeInputs(desc, &random);
    cases.push_back(
        {desc, std::move(inputs), {.seed = 0x123456789abcdef, .attempted_step = 5'000'000'000, .first_sample = 12}});
  }
  return cases;
}

std::string Describe(const NodeDesc& desc) {
  std::string text(ir::OpName(desc.op));
  for (const ir::TensorType& t : desc.inputs) absl::StrAppend(&text, " ", DTypeName(t.dtype), ShapeString(t.shape));
  absl::StrAppend(&text, " ->");
  for (const ir::TensorType& t : desc.outputs) absl::StrAppend(&text, " ", DTypeName(t.dtype), ShapeString(t.shape));
  return text;
}

}  // namespace ampd::testing
