#include "server/auth/certificates.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>
#include <vector>

#include "absl/time/clock.h"
#include "tests/unit/server/auth/certificate_pair.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CertificatesTest : public testing::Test {
 protected:
  CertificatesTest() : paths_{dir_.path() + "/cert.pem", dir_.path() + "/key.pem", ""} {}

  // As an editor or certbot does it: a new file takes the place of the old.
  static void Put(const std::string& path, const std::string& text) {
    std::ofstream(path + ".new", std::ios::binary) << text;
    std::filesystem::rename(path + ".new", path);
  }
  void Put(const Pair& pair) {
    Put(paths_.certificate, pair.certificate);
    Put(paths_.private_key, pair.key);
  }
  absl::StatusOr<std::unique_ptr<CertificateFiles>> Open() {
    return CertificateFiles::Open(
        paths_, [this](const std::string& text, bool warning) { (warning ? warnings_ : news_).push_back(text); });
  }
  void ExpectUnusable(const std::string& what) {
    const auto read = ReadCertificates(paths_);
    ASSERT_FALSE(read.ok());
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(what));
  }

  TempDir dir_;
  CertificatePaths paths_;
  std::vector<std::string> warnings_, news_;
};

TEST_F(CertificatesTest, GivesWhatFitsTogether) {
  const Pair pair = MakePair(3600);
  Put(pair);
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const auto first = (*files)->TakeNew();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->certificate, pair.certificate);
  EXPECT_EQ(first->private_key, pair.key);
  EXPECT_NEAR(absl::ToDoubleSeconds(first->not_after - absl::Now()), 3600, 300);
  EXPECT_FALSE((*files)->TakeNew()) << "nothing is new";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CertificatesTest, NamesTheFileThatIsNoGood) {
  const Pair pair = MakePair(3600);
  ExpectUnusable("cert.pem");
  Put(pair);
  Put(paths_.certificate, "hello");
  ExpectUnusable("cert.pem: holds no certificate");
  Put(paths_.certificate, pair.certificate.substr(0, pair.certificate.size() / 2));
  ExpectUnusable("cert.pem: holds no certificate");
  Put(paths_.certificate, std::string((1 << 20) + 1, 'x'));
  ExpectUnusable("cert.pem: larger");
  Put(paths_.certificate, MakePair(3600).certificate);
  ExpectUnusable("key.pem: is not the key");
  Put(paths_.private_key, pair.certificate);
  ExpectUnusable("key.pem: holds no private key");
  Put(MakePair(3600, "secret"));
  ExpectUnusable("pass phrase");
  Put(pair);
  paths_.client_ca = dir_.path() + "/ca.pem";
  ExpectUnusable("ca.pem");
  Put(paths_.client_ca, pair.key);
  ExpectUnusable("ca.pem: holds no certificate");
  Put(paths_.client_ca, MakePair(3600).certificate);
  EXPECT_TRUE(ReadCertificates(paths_).ok());
}

TEST_F(CertificatesTest, NewFilesAreTaken) {
  Put(MakePair(3600));
  const auto files = *Open();
  files->TakeNew();
  const Pair renewed = MakePair(7200);
  Put(paths_.private_key, renewed.key);
  EXPECT_FALSE(files->TakeNew()) << "half of a change";
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("those of before stay in use"));
  EXPECT_FALSE(files->TakeNew());
  EXPECT_EQ(warnings_.size(), 1u) << "told once";
  Put(paths_.certificate, renewed.certificate);
  const auto taken = files->TakeNew();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->certificate, renewed.certificate);
  EXPECT_EQ(taken->private_key, renewed.key);
  EXPECT_EQ(news_.size(), 1u);
}

TEST_F(CertificatesTest, WhatCannotBeReadForNowIsTakenLater) {
  Put(MakePair(3600));
  const auto files = *Open();
  files->TakeNew();
  Put(MakePair(7200));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_FALSE(files->TakeNew());
  EXPECT_FALSE(files->TakeNew());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(warnings_.size(), 1u) << "told once";
  EXPECT_TRUE(files->TakeNew());
}

TEST_F(CertificatesTest, BrokenExpiredAndMissingFilesLeaveTheOldInUse) {
  const Pair good = MakePair(3600);
  Put(good);
  const auto files = *Open();
  files->TakeNew();
  Put(paths_.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_FALSE(files->TakeNew());
  Put(MakePair(-60));
  EXPECT_FALSE(files->TakeNew());
  std::filesystem::remove(paths_.certificate);
  EXPECT_FALSE(files->TakeNew());
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("no certificate"), HasSubstr("expired"), HasSubstr("No such file or directory")));
  Put(good);
  EXPECT_TRUE(files->TakeNew());
}

TEST_F(CertificatesTest, AnExpiredCertificateIsNoReasonNotToStart) {
  Put(MakePair(-60));
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("expired")));
}

}  // namespace
}  // namespace ampd
