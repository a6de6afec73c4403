#include "server/auth/tokens.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <future>
#include <iterator>

#include "proto/spec/resolve.h"
#include "tests/unit/server/jobs/fake_clock.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

class TokensTest : public testing::Test {
 protected:
  TokensTest() { Restart(); }

  void Restart() {
    book_.reset();
    store_.reset();
    store_ = Store::Open({.state_dir = dir_.path() + "/state"}).value();
    book_ = TokenBook::Open(store_.get(), &clock_).value();
  }

  absl::StatusOr<v1::CreateTokenResponse> Create(const std::string& user, v1::Role role, int64_t lifetime = 0) {
    v1::CreateTokenRequest request;
    request.set_user(user);
    request.set_role(role);
    if (lifetime != 0) request.set_lifetime_seconds(lifetime);
    std::promise<absl::StatusOr<v1::CreateTokenResponse>> promise;
    book_->Create(request, [&](absl::StatusOr<v1::CreateTokenResponse> made) { promise.set_value(std::move(made)); });
    return promise.get_future().get();
  }
  absl::StatusOr<v1::Token> Revoke(const std::string& id) {
    std::promise<absl::StatusOr<v1::Token>> promise;
    book_->Revoke(id, [&](absl::StatusOr<v1::Token> token) { promise.set_value(std::move(token)); });
    return promise.get_future().get();
  }
  void ExpectRefused(const std::string& secret, const std::string& why) {
    const auto caller = book_->Authenticate(secret);
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(caller.status().message()), HasSubstr(why));
    if (!secret.empty()) {
      EXPECT_THAT(std::string(caller.status().message()), Not(HasSubstr(secret)));
    }
  }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TokenBook> book_;
};

TEST_F(TokensTest, ASecretIsItsUserAndRoleAcrossRestarts) {
  const auto ann = Create("ann", v1::SUBMITTER);
  const auto root = Create("root@example.org", v1::ADMIN);
  ASSERT_TRUE(ann.ok()) << ann.status();
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_THAT(ann->secret(), MatchesRegex("ampd_[0-9a-f]{64}"));
  EXPECT_NE(ann->secret(), root->secret());
  for (int run = 0; run < 2; ++run) {
    const auto caller = book_->Authenticate(ann->secret());
    ASSERT_TRUE(caller.ok()) << caller.status();
    EXPECT_EQ(caller->user, "ann");
    EXPECT_EQ(caller->role, v1::SUBMITTER);
    EXPECT_EQ(caller->token_id, ann->token().id());
    EXPECT_EQ(caller->Scope(), "ann");
    EXPECT_EQ(book_->Authenticate(root->secret())->Scope(), std::nullopt);
    ASSERT_EQ(book_->List().size(), 2u);
    EXPECT_EQ(book_->List()[0].id(), ann->token().id());
    Restart();
  }
  ExpectRefused("", "not known");
  ExpectRefused(ann->secret().substr(1), "not known");
  ExpectRefused(ann->secret() + "0", "not known");
}

TEST_F(TokensTest, TheStoreHasNoSecret) {
  const std::string secret = Create("ann", v1::SUBMITTER)->secret();
  book_.reset();
  store_.reset();
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path() + "/state")) {
    const std::string bytes = Contents(entry.path());
    EXPECT_EQ(bytes.find(secret), std::string::npos) << entry.path();
    EXPECT_EQ(bytes.find(secret.substr(5)), std::string::npos) << entry.path();
  }
  Restart();
}

TEST_F(TokensTest, ATokenExpiresAtItsTime) {
  const std::string secret = Create("ann", v1::VIEWER, 60)->secret();
  clock_.Advance(absl::Seconds(60) - absl::Nanoseconds(1));
  EXPECT_TRUE(book_->Authenticate(secret).ok());
  clock_.Advance(absl::Nanoseconds(1));
  ExpectRefused(secret, "expired");
  Restart();
  ExpectRefused(secret, "expired");
}

TEST_F(TokensTest, ARevokedTokenIsGoodForNothing) {
  std::vector<std::string> told;
  book_->SetRevokeListener([&](const std::string& id) { told.push_back(id); });
  const auto made = *Create("ann", v1::ADMIN);
  // Ids of the same time begin alike.
  clock_.Advance(absl::Hours(24 * 365));
  const auto other = *Create("bob", v1::ADMIN);
  const auto revoked = Revoke(made.token().id().substr(0, 12));
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_TRUE(revoked->has_revoke_time());
  ExpectRefused(made.secret(), "revoked");
  EXPECT_TRUE(book_->Authenticate(other.secret()).ok());
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Revoke(made.token().id())->revoke_time().seconds(), revoked->revoke_time().seconds()) << "the first counts";
  EXPECT_EQ(told, std::vector<std::string>{made.token().id()});
  EXPECT_EQ(Revoke("01zzzzzzzzzzzzzzzzzzzzzzzz").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Revoke("01").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Revoke("").status().code(), absl::StatusCode::kInvalidArgument);
  Restart();
  ExpectRefused(made.secret(), "revoked");
}

TEST_F(TokensTest, ASecretThatGotOutIsRevokedByItself) {
  const auto made = *Create("ann", v1::SUBMITTER);
  const auto other = *Create("bob", v1::SUBMITTER);
  const auto revoked = Revoke(" " + made.secret() + "\n");
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_EQ(revoked->id(), made.token().id());
  ExpectRefused(made.secret(), "revoked");
  EXPECT_TRUE(book_->Authenticate(other.secret()).ok());
  // What is wrong with it is told without it.
  const std::string digits = other.secret().substr(5);
  for (const std::string& given : {other.secret() + "0", other.secret().substr(0, 40), digits,
                                   "Bearer " + other.secret(), "ampd_" + std::string(64, '0')}) {
    const absl::Status status = Revoke(given).status();
    EXPECT_FALSE(status.ok()) << given;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(digits.substr(0, 8)))) << given;
  }
  EXPECT_TRUE(book_->Authenticate(other.secret()).ok());
}

TEST_F(TokensTest, BadRequestsNameTheirFields) {
  const auto field = [&](const std::string& user, v1::Role role, int64_t lifetime = 0) {
    const auto violations = FieldViolationsOf(Create(user, role, lifetime).status());
    return violations.size() == 1 ? violations[0].field : "";
  };
  EXPECT_EQ(field("", v1::ADMIN), "user");
  EXPECT_EQ(field("a b", v1::ADMIN), "user");
  EXPECT_EQ(field("a\nb", v1::ADMIN), "user");
  EXPECT_EQ(field("a/b", v1::ADMIN), "user");
  EXPECT_EQ(field(std::string(101, 'a'), v1::ADMIN), "user");
  EXPECT_EQ(field("ann", v1::ROLE_UNSPECIFIED), "role");
  EXPECT_EQ(field("ann", static_cast<v1::Role>(9)), "role");
  EXPECT_EQ(field("ann", v1::ADMIN, -1), "lifetime_seconds");
  EXPECT_EQ(field("ann", v1::ADMIN, INT64_MAX), "lifetime_seconds");
  EXPECT_THAT(book_->List(), IsEmpty());
}

TEST_F(TokensTest, TheFirstAdministratorIsMadeOnce) {
  const std::string file = dir_.path() + "/admin.token";
  EXPECT_FALSE(book_->HasAdmin());
  ASSERT_TRUE(*book_->InitAdmin(file));
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  std::string secret = Contents(file);
  secret.pop_back();
  EXPECT_EQ(book_->Authenticate(secret)->role, v1::ADMIN);
  EXPECT_TRUE(book_->HasAdmin());
  Restart();
  EXPECT_FALSE(*book_->InitAdmin(file)) << "there is one";
  EXPECT_FALSE(*book_->InitAdmin(dir_.path() + "/other")) << "there is one";
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/other"));
  EXPECT_EQ(book_->List().size(), 1u);
}

TEST_F(TokensTest, AStartThatWasCutShortIsMadeGood) {
  const std::string file = dir_.path() + "/admin.token";
  // No room: every write fails.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status full = book_->InitAdmin(file).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_FALSE(std::filesystem::exists(file)) << "all of it or nothing";
  // Killed halfway.
  std::ofstream(file + ".new") << "ampd_12";
  const auto made = book_->InitAdmin(file);
  ASSERT_TRUE(made.ok()) << made.status();
  std::string secret = Contents(file);
  secret.pop_back();
  EXPECT_EQ(book_->Authenticate(secret)->role, v1::ADMIN);
  EXPECT_FALSE(std::filesystem::exists(file + ".new"));
}

TEST_F(TokensTest, AProvisionedSecretBecomesTheFirstAdministrators) {
  const std::string file = dir_.path() + "/given", secret = "ampd_" + std::string(64, 'c');
  std::ofstream(file) << secret << "\n";
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    const absl::Status status = book_->InitAdmin(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
    EXPECT_FALSE(book_->HasAdmin());
  }
  ASSERT_EQ(chmod(file.c_str(), 0400), 0);
  ASSERT_TRUE(*book_->InitAdmin(file));
  EXPECT_EQ(book_->Authenticate(secret)->user, "admin");
  ASSERT_TRUE(Revoke(book_->List()[0].id()).ok());
  EXPECT_EQ(book_->InitAdmin(file).status().code(), absl::StatusCode::kFailedPrecondition) << "a revoked one stays so";
  ExpectRefused(secret, "revoked");
  std::ofstream(dir_.path() + "/weak") << "ampd_1234\n";
  ASSERT_EQ(chmod((dir_.path() + "/weak").c_str(), 0600), 0);
  EXPECT_EQ(book_->InitAdmin(dir_.path() + "/weak").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Contents(dir_.path() + "/weak"), "ampd_1234\n");
  EXPECT_FALSE(book_->InitAdmin(dir_.path() + "/no/such/folder").ok());
  EXPECT_FALSE(book_->HasAdmin());
}

}  // namespace
}  // namespace ampd
