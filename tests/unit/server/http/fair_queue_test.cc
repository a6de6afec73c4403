#include "server/http/fair_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace ampd {
namespace {

std::unique_ptr<Connection> From(const std::string& client, const std::string& peer = "") {
  auto connection = std::make_unique<Connection>();
  connection->client = client;
  connection->peer = peer;
  return connection;
}

TEST(FairQueueTest, TakesFromWhoHasTheFewestUnderWay) {
  FairQueue queue(2, 10);
  for (const char* peer : {"a1", "a2", "a3", "a4"}) EXPECT_EQ(queue.Put(From("a", peer)), nullptr);
  EXPECT_EQ(queue.Take()->peer, "a1");
  queue.Put(From("b", "b1"));
  EXPECT_EQ(queue.Take()->peer, "b1");
  EXPECT_EQ(queue.Take()->peer, "a2");
  // Two of a's are under way: others go before.
  queue.Put(From("c", "c1"));
  EXPECT_EQ(queue.Take()->peer, "c1");
  queue.Done("a");
  EXPECT_EQ(queue.Take()->peer, "a3");
}

TEST(FairQueueTest, AClientMayOnlyHaveSoManyWaiting) {
  FairQueue queue(1, 2);
  EXPECT_EQ(queue.Put(From("a")), nullptr);
  EXPECT_EQ(queue.Put(From("a")), nullptr);
  EXPECT_NE(queue.Put(From("a")), nullptr);
  EXPECT_EQ(queue.Put(From("b")), nullptr);
  EXPECT_EQ(queue.Take()->client, "a");
  EXPECT_EQ(queue.Put(From("a")), nullptr);
}

TEST(FairQueueTest, WaitsForOneThatMayBeTaken) {
  FairQueue queue(1, 2);
  queue.Put(From("a", "a1"));
  queue.Put(From("a", "a2"));
  EXPECT_EQ(queue.Take()->peer, "a1");
  std::thread done([&] { queue.Done("a"); });
  EXPECT_EQ(queue.Take()->peer, "a2");
  done.join();
  std::thread close([&] { queue.Close(); });
  EXPECT_EQ(queue.Take(), nullptr);
  close.join();
  EXPECT_NE(queue.Put(From("b")), nullptr);
  queue.Done("a");
}

}  // namespace
}  // namespace ampd
