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

}  // namespace
}  // namespace ampd::client
