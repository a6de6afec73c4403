// Sorting and summing of many rows, whose paths the small cases of the kernel table do not reach.
#include "engine/backend/cuda/scatter_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/backend/cuda/sort_keys.h"
#include "engine/core/half.h"
#include "tests/support/ref_tensor.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;

class ScatterRowsTest : public ::testing::Test {
 protected:
  ScatterRowsTest() {
    absl::StatusOr<std::unique_ptr<Context>> context = Context::Open("");
    EXPECT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  // Host memory is the emulated device's. Poisoned.
  KernelArgs WithWorkspace(const WorkspaceLayout& layout) {
    workspace_ = AlignedBuffer(layout.bytes());
    std::memset(workspace_.data(), 0xa5, static_cast<size_t>(layout.bytes()));
    KernelArgs args;
    args.workspace = workspace_.data();
    return args;
  }

  std::unique_ptr<Context> context_;
  AlignedBuffer workspace_;
};

std::vector<uint32_t> Keys(int64_t count, uint32_t largest, uint64_t seed) {
  testing::Random random(seed);
  std::vector<uint32_t> keys(count);
  for (uint32_t& key : keys) key = static_cast<uint32_t>(random.Below(int64_t{largest} + 1));
  keys[count / 2] = largest;
  return keys;
}

TEST_F(ScatterRowsTest, SortsStably) {
  for (const auto& [count, largest] : {std::pair<int64_t, uint32_t>{1, 0},
                                       {65, 3},
                                       {2047, 50304},
                                       {2048, 0xfffffffeu},
                                       {2049, 1},
                                       {2049, 255},
                                       {4096, 256},
                                       {5000, 50304},
                                       {7001, 0xfffffffeu}}) {
    WorkspaceLayout layout;
    const KeySort sort(count, largest, &layout);
    const KernelArgs args = WithWorkspace(layout);
    const std::vector<uint32_t> keys = Keys(count, largest, static_cast<uint64_t>(count) + largest);
    std::copy(keys.begin(), keys.end(), sort.keys(args));
    ASSERT_TRUE(sort.Run(*context_, "sort", args).ok());
    ASSERT_TRUE(context_->Wait().ok());
    std::vector<int32_t> expected(count);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(sort.positions(args)[i], expected[i]) << count << " keys up to " << largest << ", place " << i;
      ASSERT_EQ(sort.sorted_keys(args)[i], keys[expected[i]]);
    }
  }
}

struct Case {
  int64_t outer, count, rows, inner;
  // Positions in a hundred that name row rows / 2.
  int64_t hot;
};

// Small whole numbers, whose sums are exact in any order.
TEST_F(ScatterRowsTest, SumsRowsThatCrossWindows) {
  for (const Case& c : {Case{1, 3000, 40, 8, 0},
                        {1, 3000, 5000, 4, 60},
                        {1, 3000, 7, 3, 100},
                        {2, 300, 3, 5, 50},
                        {1, 64, 2, 1, 100},
                        {1, 33, 2, 4, 100},
                        {3, 97, 1, 4, 0}}) {
    WorkspaceLayout layout;
    const absl::StatusOr<RowScatter> scatter = RowScatter::Make("s", c.outer, c.count, c.rows, c.inner, &layout);
    ASSERT_TRUE(scatter.ok());
    const KernelArgs args = WithWorkspace(layout);
    testing::Random random(static_cast<uint64_t>(c.count + c.hot));
    Tensor x(DType::kF16, {c.outer, c.count, c.inner}), y(DType::kF32, {c.outer, c.rows, c.inner});
    Tensor indices(DType::kI32, {c.count});
    for (Half& v : x.as<Half>()) v = ToHalf(static_cast<float>(random.Below(9)) - 4);
    for (float& v : y.as<float>()) v = std::nanf("");
    for (int32_t& index : indices.as<int32_t>()) {
      const bool hot = random.Below(100) < c.hot;
      index = static_cast<int32_t>(hot ? c.rows / 2 : random.Below(c.rows + 2) - 1);
    }
    ASSERT_TRUE(scatter->MakeKeys(*context_, "s", args, indices.as<int32_t>().data(), false).ok());
    ASSERT_TRUE(scatter->Run(*context_, "s", args, x.view(), y.view()).ok());
    ASSERT_TRUE(context_->Wait().ok());
    std::vector<double> expected(y.size(), 0);
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t o = i / c.inner / c.count, row = indices.as<int32_t>()[i / c.inner % c.count];
      if (row >= 0 && row < c.rows) expected[(o * c.rows + row) * c.inner + i % c.inner] += ToFloat(x.as<Half>()[i]);
    }
    for (int64_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y.as<float>()[i], expected[i]) << c.count << " positions, " << c.rows << " rows, element " << i;
    }
  }
}

// The lowest bits of a sum say in which order it was made: that of positions, where a row lies within one window.
TEST_F(ScatterRowsTest, AddsInTheOrderOfPositions) {
  constexpr int64_t kCount = 2100, kRows = 700;
  WorkspaceLayout layout;
  const absl::StatusOr<RowScatter> scatter = RowScatter::Make("s", 1, kCount, kRows, 1, &layout);
  ASSERT_TRUE(scatter.ok());
  const KernelArgs args = WithWorkspace(layout);
  testing::Random random(7);
  Tensor x(DType::kF32, {1, kCount, 1}), y(DType::kF32, {1, kRows, 1}), indices(DType::kI32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) {
    x.as<float>()[i] = static_cast<float>(random.Uniform(-1, 1));
    indices.as<int32_t>()[i] = static_cast<int32_t>(i * 32 % kCount / 3);
  }
  ASSERT_TRUE(scatter->MakeKeys(*context_, "s", args, indices.as<int32_t>().data(), false).ok());
  ASSERT_TRUE(scatter->Run(*context_, "s", args, x.view(), y.view()).ok());
  ASSERT_TRUE(context_->Wait().ok());
  std::vector<float> expected(kRows, 0);
  for (int64_t i = 0; i < kCount; ++i) expected[indices.as<int32_t>()[i]] += x.as<float>()[i];
  int64_t crossing = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    // Rows have three positions each, so these cross a window of 32.
    const bool crosses = 3 * r / 32 != (3 * r + 2) / 32;
    crossing += crosses;
    if (crosses) {
      EXPECT_NEAR(y.as<float>()[r], expected[r], 1e-6);
    } else {
      EXPECT_EQ(y.as<float>()[r], expected[r]) << "row " << r;
    }
  }
  EXPECT_GT(crossing, 0);
}

TEST_F(ScatterRowsTest, RefusesWhatItsKeysCannotHold) {
  WorkspaceLayout layout;
  const absl::Status status = RowScatter::Make("node7", 1, int64_t{1} << 31, 4, 1, &layout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("node7"), absl::string_view::npos);
  EXPECT_FALSE(RowScatter::Make("node7", 1, 4, int64_t{1} << 32, 1, &layout).ok());
}

}  // namespace
}  // namespace ampd::cuda
