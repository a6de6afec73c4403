#include "client/output/table.h"

#include "gtest/gtest.h"

namespace ampd::client {
namespace {

TEST(TableTest, AlignsColumns) {
  Table table({"ID", ">STEP", "NAME"});
  table.Add({"a", "5", "x"});
  table.Add({"caf\xc3\xa9", "1234567", ""});
  table.Add({"bad\x1b", "-"});
  EXPECT_EQ(table.ToString(),
            "ID       STEP  NAME\n"
            "a           5  x\n"
            "caf\xc3\xa9  1234567\n"
            "bad?        -\n");
}

class NarrowTableTest : public testing::Test {
 protected:
  NarrowTableTest() {
    table_.Add({"01abc", "a long name", "FAILED", "7", "-", "the loss is NaN"});
    table_.Add({"01abd", "b", "RUNNING", "12", "-", "-"});
  }
  std::string Within(size_t columns) const { return table_.ToString(columns, fit_); }

  Table table_{{"ID", "NAME", "STATE", ">STEP", "MODE", "WHY"}};
  const Table::Fit fit_{{{1, 6}, {5, 8}}, {3, 4, 5}};
};

TEST_F(NarrowTableTest, WhatFitsIsWhole) {
  EXPECT_EQ(Within(56), table_.ToString());
  EXPECT_EQ(Within(1000), table_.ToString());
}

TEST_F(NarrowTableTest, TextIsCutWithAMarkAndTheFirstGetsRoomFirst) {
  EXPECT_EQ(Within(51),
            "ID     NAME         STATE    STEP  MODE  WHY\n"
            "01abc  a long name  FAILED      7  -     the loss..\n"
            "01abd  b            RUNNING    12  -     -\n");
  EXPECT_EQ(Within(46),
            "ID     NAME      STATE    STEP  MODE  WHY\n"
            "01abc  a long..  FAILED      7  -     the lo..\n"
            "01abd  b         RUNNING    12  -     -\n");
}

TEST_F(NarrowTableTest, ColumnsThatSayNothingGoFirstAndNarrowOnesComeBack) {
  EXPECT_EQ(Within(43),
            "ID     NAME         STATE    STEP  WHY\n"
            "01abc  a long name  FAILED      7  the lo..\n"
            "01abd  b            RUNNING    12  -\n");
  EXPECT_EQ(Within(34),
            "ID     NAME      STATE    WHY\n"
            "01abc  a long..  FAILED   the lo..\n"
            "01abd  b         RUNNING  -\n");
  EXPECT_EQ(Within(30),
            "ID     NAME      STATE    STEP\n"
            "01abc  a long..  FAILED      7\n"
            "01abd  b         RUNNING    12\n");
  // There is nothing left to leave out.
  EXPECT_EQ(Within(3),
            "ID     NAME    STATE\n"
            "01abc  a lo..  FAILED\n"
            "01abd  b       RUNNING\n");
}

// It is followed by a gap like any other.
TEST(TableTest, AColumnWithoutTextTakesRoomToo) {
  Table table({"", "NAME", "FILE"});
  table.Add({"", "lab", "abcdefgh"});
  EXPECT_EQ(table.ToString(14, {{{2, 4}}, {}}), "  NAME  FILE\n  lab   abcd..\n");
}

}  // namespace
}  // namespace ampd::client
