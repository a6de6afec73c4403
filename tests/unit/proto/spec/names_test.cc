#include "proto/spec/names.h"

#include "gtest/gtest.h"

namespace ampd {
namespace {

TEST(GlobMatchesTest, FollowsTheUsualRules) {
  const struct {
    const char* pattern;
    const char* text;
    bool matches;
  } kCases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"head", "head", true},
      {"head", "heads", false},
      {"he?d", "head", true},
      {"he?d", "hed", false},
      {"*d", "head", true},
      {"h*", "head", true},
      {"h*x", "head", false},
      {"*a*a*", "banana", true},
      {"*a*a*a*a*", "banana", false},
      {"b*n?", "banana", true},
      {"layer4.*", "layer4.0.conv", true},
      {"layer?.conv", "layer4.0.conv", false},
      {"Head", "head", false},
      {"**", "x", true},
  };
  for (const auto& c : kCases) EXPECT_EQ(GlobMatches(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
}

TEST(GlobMatchesTest, ManyStarsStayCheap) {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(200, 'a')));
}

TEST(EditDistanceTest, CountsEdits) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("batch_sise", "batch_size"), 1);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
  EXPECT_EQ(EditDistance("FP16", "fp16"), 0);
}

TEST(NearestNameTest, ProposesOnlySlips) {
  EXPECT_EQ(NearestName("batch_sise", {"epochs", "batch_size"}), "batch_size");
  EXPECT_EQ(NearestName("batchSize", {"epochs", "batch_size"}), "batch_size");
  EXPECT_EQ(NearestName("color", {"epochs", "batch_size"}), "");
  EXPECT_EQ(NearestName("x", {"y"}), "");
  EXPECT_EQ(NearestName("", {"y"}), "");
  EXPECT_EQ(NearestName(std::string(1000, 'a'), {std::string(1000, 'a')}), "");
}

TEST(QuotedTest, EscapesAndCuts) {
  EXPECT_EQ(Quoted("head"), "'head'");
  EXPECT_EQ(Quoted("a\x1b[2J"), "'a\\x1b[2J'");
  EXPECT_EQ(Quoted(std::string(60, 'a')), "'" + std::string(60, 'a') + "'");
  EXPECT_EQ(Quoted(std::string(100, 'a')), "'" + std::string(60, 'a') + "...' (40 more bytes)");
}

TEST(CutTest, TellsHowMuchIsLeftOut) {
  EXPECT_EQ(Cut("", 3), "");
  EXPECT_EQ(Cut("abc", 3), "abc");
  EXPECT_EQ(Cut("abcd", 3), "abc... (1 more byte)");
  EXPECT_EQ(Cut(std::string(1000, 'a'), 3), "aaa... (997 more bytes)");
  // Characters of two, three and four bytes stay whole.
  EXPECT_EQ(Cut("a\u00e9bcd", 2), "a... (5 more bytes)");
  EXPECT_EQ(Cut("a\u00e9bcd", 3), "a\u00e9... (3 more bytes)");
  EXPECT_EQ(Cut("\u20ac\u20ac", 5), "\u20ac... (3 more bytes)");
  EXPECT_EQ(Cut("\U0001f600\U0001f600", 7), "\U0001f600... (4 more bytes)");
  // What is no UTF-8 is cut anywhere.
  EXPECT_EQ(Cut(std::string(9, '\x80'), 4), std::string(4, '\x80') + "... (5 more bytes)");
}

}  // namespace
}  // namespace ampd
