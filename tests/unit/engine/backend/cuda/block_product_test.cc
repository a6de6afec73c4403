// Products by one block of threads at sizes that fill no tile, whichever way the operands lie, against float64; and
// what is not finite stays in its row and column.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/backend/cuda/block_product.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

template <typename T>
void MultiplyKernel(BlockProduct p) {
  MultiplyByBlock<T, kThreads>(p, static_cast<const T*>(p.a), static_cast<const T*>(p.b), p.d, DynamicShared<float4>());
}

struct Case {
  int32_t rows, columns, inner;
  bool a_transposed = false, b_transposed = false;
};

// Small whole numbers and halves: their products and sums are exact in fp32.
double Draw(int i) { return ((i * 37 + 11) % 17 - 8) * 0.5; }

template <typename T>
class BlockProductOf : public ::testing::Test {
 public:
  // d of the case, with a[bad_row, bad_k] infinite where bad_row >= 0.
  static std::vector<float> Multiply(const Case& c, int bad_row, int bad_k) {
    std::vector<T> a(static_cast<size_t>(c.rows) * c.inner), b(static_cast<size_t>(c.columns) * c.inner);
    BlockProduct p{.a = a.data(), .b = b.data()};
    p.rows = c.rows, p.columns = c.columns, p.inner = c.inner, p.d_row = c.columns;
    p.a_row = c.a_transposed ? 1 : c.inner, p.a_inner = c.a_transposed ? c.rows : 1;
    p.b_inner = c.b_transposed ? 1 : c.columns, p.b_column = c.b_transposed ? c.inner : 1;
    for (int r = 0; r < c.rows; ++r) {
      for (int k = 0; k < c.inner; ++k) {
        const bool bad = r == bad_row && k == bad_k;
        a[static_cast<size_t>(r * p.a_row + k * p.a_inner)] =
            Store<T>(bad ? std::numeric_limits<float>::infinity() : static_cast<float>(Draw(r * c.inner + k)));
      }
    }
    for (int k = 0; k < c.inner; ++k) {
      for (int n = 0; n < c.columns; ++n) {
        b[static_cast<size_t>(k * p.b_inner + n * p.b_column)] = Store<T>(static_cast<float>(Draw(3 * n + 7 * k + 1)));
      }
    }
    std::vector<float> d(static_cast<size_t>(c.rows) * c.columns, -1e30f);
    p.d = d.data();
    p.splits = SplitsFor(p, kWarps);
    EXPECT_TRUE(Launch("product", MultiplyKernel<T>, 1, kThreads, ScratchOf(p), nullptr, p).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return d;
  }
};

using Types = ::testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(BlockProductOf, Types);

TYPED_TEST(BlockProductOf, IsThatOfFloat64) {
  for (int32_t rows : {1, 15, 16, 33}) {
    for (int32_t columns : {1, 7, 8, 10, 24}) {
      for (int32_t inner : {1, 2, 16, 31, 200}) {
        for (int sides = 0; sides < 4; ++sides) {
          const Case c{rows, columns, inner, (sides & 1) != 0, (sides & 2) != 0};
          const std::vector<float> d = TestFixture::Multiply(c, -1, -1);
          for (int r = 0; r < rows; ++r) {
            for (int n = 0; n < columns; ++n) {
              double expected = 0;
              for (int k = 0; k < inner; ++k) expected += Draw(r * inner + k) * Draw(3 * n + 7 * k + 1);
              ASSERT_EQ(d[static_cast<size_t>(r * columns + n)], expected)
                  << rows << "x" << columns << "x" << inner << " sides " << sides << " at " << r << ", " << n;
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(BlockProductOf, KeepsWhatIsNotFiniteInItsRow) {
  const Case c{21, 9, 35};
  const std::vector<float> d = TestFixture::Multiply(c, 20, 34);
  for (int r = 0; r < c.rows; ++r) {
    for (int n = 0; n < c.columns; ++n) {
      EXPECT_EQ(std::isfinite(d[static_cast<size_t>(r * c.columns + n)]), r != 20) << r << ", " << n;
    }
  }
}

TEST(BlockProduct, CutsLongSumsOfFewResults) {
  EXPECT_EQ(SplitsFor({.rows = 16, .columns = 16, .inner = 512}, 16), 8);
  EXPECT_EQ(SplitsFor({.rows = 512, .columns = 16, .inner = 8}, 16), 1);
  EXPECT_EQ(SplitsFor({.rows = 16, .columns = 8, .inner = 40}, 16), 3);
}

}  // namespace
}  // namespace ampd::cuda
