#include "engine/train/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace ampd::train {
namespace {

// FIPS 180-4's examples (NIST, "SHA-256 examples") and the million a's.
TEST(Sha256, PublishedDigests) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySizeGiveTheSameDigest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>(i * 7));
  for (size_t piece = 1; piece < 150; ++piece) {
    Sha256 sha;
    for (size_t at = 0; at < text.size(); at += piece) sha.Append(absl::string_view(text).substr(at, piece));
    ASSERT_EQ(sha.HexDigest(), Sha256Hex(text)) << piece;
  }
}

}  // namespace
}  // namespace ampd::train
