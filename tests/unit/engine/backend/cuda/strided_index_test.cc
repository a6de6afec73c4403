// The arithmetic of places in strided views.
#include "engine/backend/cuda/strided_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace ampd::cuda {
namespace {

TEST(Divisor, DividesAsTheProcessorDoes) {
  const std::vector<int64_t> numbers = {1,
                                        2,
                                        3,
                                        5,
                                        7,
                                        10,
                                        31,
                                        32,
                                        33,
                                        255,
                                        641,
                                        1000,
                                        65535,
                                        65536,
                                        65537,
                                        16777259,
                                        (int64_t{1} << 30) - 1,
                                        (int64_t{1} << 30) + 1,
                                        (int64_t{1} << 31) - 1};
  for (int64_t d : numbers) {
    const Divisor divisor(d);
    const auto expect = [&](int64_t n) {
      if (n < 0 || n >= int64_t{1} << 31) return;
      ASSERT_EQ(divisor.Divide(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
    };
    for (int64_t n : numbers) {
      for (int64_t near : {-1, 0, 1}) expect(n + near), expect(n / d * d + near);
    }
    for (int64_t n = 0; n < int64_t{1} << 31; n += 1234577) expect(n);
  }
}

TEST(StridedIndex, FindsWhatTheViewDoes) {
  for (const auto& [from, to] : std::vector<std::pair<Shape, Shape>>{
           {{3, 1, 5}, {3, 4, 5}}, {{4, 1}, {2, 4, 3}}, {{2, 1, 3, 1, 5}, {2, 7, 3, 2, 5}}, {{1}, {6}}, {{6}, {6}}}) {
    const StridedView view = BroadcastView(from, to);
    auto index = MakeStridedIndex("test", view);
    ASSERT_TRUE(index.ok()) << index.status();
    for (bool wide : {false, true}) {
      index->wide = wide;
      for (int64_t i = 0; i < NumElements(to); ++i) ASSERT_EQ(index->At(i), At(view, i)) << ShapeString(to) << i;
    }
  }
}

TEST(StridedIndex, RefusesTooManyAxes) {
  Shape from(10, 1), to(10, 2);
  for (size_t d = 0; d < from.size(); d += 2) from[d] = 2;
  const absl::Status status = MakeStridedIndex("node", BroadcastView(from, to)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(std::string(status.message()).find("node"), std::string::npos) << status;
}

}  // namespace
}  // namespace ampd::cuda
