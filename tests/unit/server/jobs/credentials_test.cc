#include "server/jobs/credentials.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace ampd {
namespace {

TEST(CredentialsTest, Sha256OfTheStandardsExamples) {
  // FIPS 180-4's examples.
  EXPECT_EQ(absl::BytesToHexString(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(absl::BytesToHexString(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(CredentialsTest, MatchesItsOwnHashOnly) {
  const std::string credential = NewCredential();
  EXPECT_EQ(credential.size(), 64u);
  EXPECT_TRUE(MatchesHash(credential, Sha256(credential)));
  EXPECT_FALSE(MatchesHash(NewCredential(), Sha256(credential)));
  EXPECT_FALSE(MatchesHash("", ""));
  EXPECT_FALSE(MatchesHash(credential, ""));
  EXPECT_FALSE(MatchesHash(credential, Sha256(credential).substr(0, 31)));
}

}  // namespace
}  // namespace ampd
