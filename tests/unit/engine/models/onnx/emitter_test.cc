// Arithmetic on values known at import, against numbers written down by hand.
#include "engine/models/onnx/emitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ampd::models::onnx {
namespace {

using ::testing::ElementsAre;

class EmitterTest : public ::testing::Test {
 protected:
  V Numbers(DType dtype, Shape shape, const std::vector<double>& values) {
    auto t = std::make_shared<Tensor>(DType::kF32, shape);
    for (size_t i = 0; i < values.size(); ++i) t->as<float>()[i] = static_cast<float>(values[i]);
    return e_.Cast(e_.Known(t), dtype);
  }
  static std::vector<double> Of(V v) { return ToDoubles(*v->host); }

  ir::Graph graph_;
  Emitter e_{&graph_, 1e6};
};

TEST_F(EmitterTest, MovesData) {
  V x = Numbers(DType::kI64, {2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_THAT(Of(e_.Transpose(x, {1, 0})), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(Of(e_.Slice(x, {1, 2}, {-1, -1}, {-1, -2})), ElementsAre(5, 3, 2, 0));
  EXPECT_THAT(Of(e_.Expand(e_.SliceAxis(x, 0, 1, 2), {2, 3})), ElementsAre(3, 4, 5, 3, 4, 5));
  EXPECT_THAT(Of(e_.Concat({x, e_.SliceAxis(x, 1, 0, 1)}, 1)), ElementsAre(0, 1, 2, 0, 3, 4, 5, 3));
  EXPECT_THAT(Of(e_.Gather(x, e_.Ints({-1, 0}), 1)), ElementsAre(2, 0, 5, 3));
  EXPECT_THAT(e_.SliceAxis(x, 1, 3, 3)->type.shape, ElementsAre(2, 0));
  EXPECT_TRUE(graph_.nodes.empty());
}

TEST_F(EmitterTest, Calculates) {
  V a = Numbers(DType::kI64, {2, 1}, {7, -7}), b = Numbers(DType::kI64, {2}, {2, -2});
  EXPECT_THAT(Of(e_.Div(a, b)), ElementsAre(3, -3, -3, 3));
  EXPECT_THAT(Of(e_.Binary("mod", a, b)), ElementsAre(1, -1, 1, -1));
  EXPECT_THAT(Of(e_.Binary("less", a, b)), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(e_.Binary("less", a, b)->type.dtype, DType::kBool);
  V x = Numbers(DType::kF32, {2, 2}, {1, 4, 9, 16});
  EXPECT_THAT(Of(e_.Unary("sqrt", x)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Of(e_.Reduce("reduce_mean", x, {0}, false)), ElementsAre(5, 10));
  EXPECT_THAT(e_.Reduce("reduce_max", x, {1}, true)->type.shape, ElementsAre(2, 1));
  V none = e_.SliceAxis(x, 0, 0, 0);
  EXPECT_THAT(Of(e_.Reduce("reduce_sum", none, {0}, false)), ElementsAre(0, 0));
  EXPECT_THAT(Of(e_.Reduce("reduce_prod", none, {0}, false)), ElementsAre(1, 1));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Of(e_.Reduce("reduce_max", none, {0}, false)), ElementsAre(-infinity, -infinity));
  V nan = Numbers(DType::kF32, {1}, {NAN});
  EXPECT_TRUE(std::isnan(Of(e_.Binary("max", nan, e_.Scalar(DType::kF32, 1)))[0]));
  EXPECT_TRUE(std::isnan(Of(e_.Binary("max", e_.Scalar(DType::kF32, 1), nan))[0]));
}

TEST_F(EmitterTest, RoundsOnce) {
  // 1 + 2^-11 + 2^-40 is just above the middle of two halves; by way of f32 it would be taken for the middle.
  EXPECT_THAT(Of(e_.Scalar(DType::kF16, 1 + 0x1p-11 + 0x1p-40)), ElementsAre(1 + 0x1p-10));
  EXPECT_THAT(Of(e_.Scalar(DType::kF16, 1 + 0x1p-11)), ElementsAre(1));
  EXPECT_THAT(Of(e_.Scalar(DType::kBF16, -1 - 0x1p-8 - 0x1p-50)), ElementsAre(-1 - 0x1p-7));
  V x = Numbers(DType::kF32, {2}, {1e9, -3});
  EXPECT_THAT(Of(e_.Cast(x, DType::kF8E4M3, true)), ElementsAre(448, -3));
  EXPECT_TRUE(std::isnan(Of(e_.Cast(x, DType::kF8E4M3, false))[0]));
}

// Values that are known stay in memory, whatever becomes of them.
TEST(EmitterMemory, KnownValuesAreCounted) {
  const auto copies_of = [](int64_t file_bytes, auto&& copy) {
    ir::Graph graph;
    Emitter e(&graph, 100, file_bytes);
    V x = e.Known(std::make_shared<Tensor>(DType::kF32, Shape{4, 5}));
    // The same tensor is counted once.
    e.Known(x->host);
    int copies = 0;
    for (; e.ok() && copies < 1000; ++copies) x = copy(e, x);
    EXPECT_EQ(e.status().code(), absl::StatusCode::kResourceExhausted);
    // Neither an error nor what it gives is taken for room.
    EXPECT_FALSE(e.TakeStatus().ok());
    e.Placeholder();
    EXPECT_FALSE(e.ok());
    return copies;
  };
  const auto reshape = [](Emitter& e, V x) { return e.Reshape(x, {x->type.shape[1], x->type.shape[0]}); };
  const auto transpose = [](Emitter& e, V x) { return e.Transpose(x, {1, 0}); };
  const auto slice = [](Emitter& e, V x) { return e.Slice(x, {3, 4}, {-1, -1}, {-1, -1}); };
  const auto square = [](Emitter& e, V x) { return e.Mul(x, x); };
  // 800 bytes are ten times x, the eleventh is too many.
  EXPECT_EQ(copies_of(0, reshape), 10);
  EXPECT_EQ(copies_of(0, transpose), 10);
  EXPECT_EQ(copies_of(0, slice), 10);
  EXPECT_EQ(copies_of(0, square), 10);
  // Four more times what is in the file.
  EXPECT_EQ(copies_of(80, reshape), 14);
}

TEST_F(EmitterTest, TheFirstErrorSticks) {
  V a = Numbers(DType::kF32, {2}, {1, 2}), b = Numbers(DType::kF32, {3}, {1, 2, 3});
  V y = e_.Mul(e_.Add(a, b), e_.Gather(a, e_.Ints({9}), 0));
  EXPECT_EQ(e_.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Emitter::Extent(y, 5), 1);
  EXPECT_FALSE(e_.TakeStatus().ok());
  EXPECT_TRUE(e_.ok());
}

}  // namespace
}  // namespace ampd::models::onnx
