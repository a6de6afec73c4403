#include "server/main/open_connections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "server/files/unique_fd.h"

namespace ampd {
namespace {

UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(OpenConnections, LetsInAsManyAsTheBounds) {
  OpenConnections open({5, 2, 3});
  std::vector<UniqueFd> sockets;
  const auto add = [&](const std::string& client, bool is_local) {
    if (!open.HasRoomFor(client, is_local)) return false;
    sockets.push_back(NewSocket());
    open.Add(sockets.back().get(), client);
    return true;
  };
  EXPECT_TRUE(add("a", false));
  EXPECT_TRUE(add("a", false));
  EXPECT_FALSE(add("a", false));
  EXPECT_TRUE(add("l", true));
  EXPECT_TRUE(add("l", true));
  EXPECT_TRUE(add("l", true));
  EXPECT_EQ(open.CountOf("a"), 2u);
  EXPECT_EQ(open.CountOf("l"), 3u);
  // In all.
  EXPECT_FALSE(add("b", false));
  sockets[0].Reset();
  EXPECT_TRUE(add("b", false));
  EXPECT_FALSE(add("b", false));
  EXPECT_EQ(open.size(), 5u);
  EXPECT_EQ(open.CountOf("a"), 1u);
}

TEST(OpenConnections, ADescriptorThatIsSomethingElseByNowIsNoConnection) {
  OpenConnections open({2, 2, 2});
  UniqueFd first = NewSocket();
  UniqueFd second = NewSocket();
  open.Add(first.get(), "a");
  open.Add(second.get(), "a");
  EXPECT_FALSE(open.HasRoomFor("b", false));
  const int number = second.get();
  second.Reset();
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number);
  EXPECT_TRUE(open.HasRoomFor("b", false));
  EXPECT_EQ(open.size(), 1u);
}

TEST(OpenConnections, TheNextOfANumberTakesThePlaceOfTheLast) {
  OpenConnections open({4, 4, 4});
  UniqueFd first = NewSocket();
  const int number = first.get();
  open.Add(number, "a");
  first.Reset();
  const UniqueFd second = NewSocket();
  ASSERT_EQ(second.get(), number);
  open.Add(number, "b");
  EXPECT_EQ(open.size(), 1u);
  EXPECT_EQ(open.CountOf("a"), 0u);
  EXPECT_EQ(open.CountOf("b"), 1u);
}

TEST(OpenConnections, FindsOneThatHasEndedAmongMany) {
  constexpr int kMany = 300;
  for (const bool is_of_client : {false, true}) {
    OpenConnections open(is_of_client ? ConnectionBounds{2 * kMany, kMany, kMany}
                                      : ConnectionBounds{kMany, 2 * kMany, 2 * kMany});
    std::vector<UniqueFd> sockets;
    for (int i = 0; i < kMany; ++i) {
      ASSERT_TRUE(open.HasRoomFor("a", false)) << i;
      sockets.push_back(NewSocket());
      open.Add(sockets.back().get(), "a");
    }
    for (const int ended : {kMany - 1, 0, kMany / 2}) {
      sockets[ended].Reset();
      int tries = 1;
      while (!open.HasRoomFor("a", false) && tries <= kMany) ++tries;
      EXPECT_LE(tries, 6) << ended;
      sockets[ended] = NewSocket();
      open.Add(sockets[ended].get(), "a");
      EXPECT_FALSE(open.HasRoomFor("a", false));
    }
    sockets.clear();
    EXPECT_TRUE(open.HasRoomFor("a", false));
  }
}

}  // namespace
}  // namespace ampd
