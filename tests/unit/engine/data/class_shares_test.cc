#include "engine/data/class_shares.h"

#include "gtest/gtest.h"

namespace ampd::data {
namespace {

// One by one.
std::vector<int64_t> Dealt(const std::vector<int64_t>& sizes, int64_t limit) {
  std::vector<int64_t> shares(sizes.size(), 0);
  for (bool any = true; any;) {
    any = false;
    for (size_t c = 0; c < sizes.size(); ++c) {
      if (shares[c] == sizes[c] || limit == 0) continue;
      ++shares[c], --limit;
      any = true;
    }
  }
  return shares;
}

TEST(SharesInTurn, AreThoseThatAreDealtOneByOne) {
  const std::vector<std::vector<int64_t>> all = {{5}, {0, 3}, {1, 1, 1}, {7, 2, 0, 4, 4}, {1, 100, 3}, {20, 1, 20}};
  for (const std::vector<int64_t>& sizes : all) {
    for (int64_t limit = 1; limit < 120; ++limit) EXPECT_EQ(SharesInTurn(sizes, limit), Dealt(sizes, limit)) << limit;
    EXPECT_EQ(SharesInTurn(sizes, 0), sizes);
  }
  const int64_t many = int64_t{1} << 40;
  EXPECT_EQ(SharesInTurn({many, many, 5}, many + 6), (std::vector<int64_t>{many / 2 + 1, many / 2, 5}));
}

}  // namespace
}  // namespace ampd::data
