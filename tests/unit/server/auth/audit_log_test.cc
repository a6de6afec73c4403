#include "server/auth/audit_log.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/auth/peer.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

AuditRecord Record(const std::string& resource) {
  return {absl::FromUnixMillis(1'800'000'000'123),
          {"ann", v1::SUBMITTER, "01abc"},
          "ipv4:127.0.0.1:5",
          "CancelJob",
          resource,
          "",
          "OK"};
}

std::string FieldOf(const std::string& line, const std::string& name) {
  google::protobuf::Struct fields;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &fields).ok()) << line;
  const auto found = fields.fields().find(name);
  return found == fields.fields().end() ? "(none)" : found->second.string_value();
}

TEST(AuditLogTest, ALineIsAnObject) {
  EXPECT_EQ(FormatAuditLine(Record("01job")),
            R"({"time":"2027-01-15T08:00:00.123Z","user":"ann","token":"01abc","role":"SUBMITTER",)"
            R"("peer":"ipv4:127.0.0.1:5","method":"CancelJob","resource":"01job","code":"OK"})");
  EXPECT_EQ(FormatAuditLine({absl::UnixEpoch(), {}, "", "CreateJob", "", "01new", "UNAUTHENTICATED"}),
            R"({"time":"1970-01-01T00:00:00.000Z","method":"CreateJob","made":"01new","code":"UNAUTHENTICATED"})");
}

TEST(AuditLogTest, ADurableLineIsOnDiskWhenItIsWritten) {
  TempDir dir;
  AuditLog::Options options;
  options.path = dir.path() + "/audit.log";
  // Lines that were on disk.
  size_t synced = 0;
  int error = 0;
  options.sync = [&](int) {
    if ((errno = error) != 0) return -1;
    synced = Lines(options.path).size();
    return 0;
  };
  std::vector<std::string> news;
  options.log = [&news](const std::string& text) { news.push_back(text); };
  const auto log = AuditLog::Open(options).value();
  log->Write(Record("1"));
  log->Write(Record("2"));
  EXPECT_EQ(synced, 0u);
  AuditRecord durable = Record("3");
  durable.durable = true;
  log->Write(durable);
  EXPECT_EQ(synced, 3u) << "those before it as well";
  log->Write(Record("4"));
  EXPECT_EQ(synced, 3u);
  error = EIO;
  log->Write(durable);
  error = 0;
  log->Write(durable);
  EXPECT_EQ(synced, 6u);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_THAT(news[0], HasSubstr("sync the audit log"));
}

TEST(AuditLogTest, NoNameBreaksALine) {
  for (const std::string& name :
       {std::string("a\nb\"c\\"), std::string("\x00\x01\x7f", 3), std::string("\xff\xfe"), std::string(100'000, 'x')}) {
    const std::string line = FormatAuditLine(Record(name));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_LT(line.size(), 2000u);
    EXPECT_EQ(FieldOf(line, "code"), "OK");
  }
  EXPECT_EQ(FieldOf(FormatAuditLine(Record("a\nb\"c")), "resource"), "a\nb\"c");
}

TEST(AuditLogTest, NoSecretIsWritten) {
  const std::string digits(64, 'b');
  const auto resource = [](const std::string& name) { return FieldOf(FormatAuditLine(Record(name)), "resource"); };
  EXPECT_EQ(resource("ampd_" + digits), "ampd_...");
  EXPECT_EQ(resource("Bearer ampd_" + digits + "x ampd_0123456789ABCDEF!"), "Bearer ampd_...x ampd_...!");
  EXPECT_EQ(resource("ampd_faces and ampd_"), "ampd_faces and ampd_") << "a name";
  EXPECT_EQ(resource(digits), digits) << "a checksum";
}

AuditRecord Strangers(int64_t milliseconds, const std::string& peer) {
  return {
      absl::FromUnixMillis(1'800'000'000'000 + milliseconds), {}, peer, "CancelJob", "01job", "", "UNAUTHENTICATED"};
}

// Of the lines that tell how many calls have none.
double LeftOutIn(const std::vector<std::string>& lines) {
  double calls = 0;
  for (const std::string& line : lines) {
    google::protobuf::Struct fields;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &fields).ok()) << line;
    if (const auto found = fields.fields().find("left_out"); found != fields.fields().end()) {
      calls += found->second.number_value();
    }
  }
  return calls;
}

TEST(AuditLogTest, StrangersCannotPushOthersLinesOut) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  constexpr int64_t kMaxBytes = 40'000;
  auto log = *AuditLog::Open({.path = path, .max_bytes = kMaxBytes, .keep = 1});
  log->Write(Record("evidence"));
  // From many addresses, for days: each has the lines of its second.
  constexpr int kCalls = 200'000;
  for (int i = 0; i < kCalls; ++i) {
    log->Write(Strangers(int64_t{i} * 2000, absl::StrCat("ipv4:10.0.", i / 250 % 250, ".", i % 250, ":5")));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".1")) << "no file was begun for them";
  EXPECT_LE(std::filesystem::file_size(path), kMaxBytes / 4 + 1000);
  AuditRecord later = Record("later");
  later.time += absl::Hours(24 * 30);
  log->Write(later);
  log.reset();
  const std::vector<std::string> lines = Lines(path);
  EXPECT_EQ(FieldOf(lines.front(), "resource"), "evidence");
  EXPECT_EQ(FieldOf(lines.back(), "resource"), "later");
  EXPECT_EQ(FieldOf(lines[lines.size() - 2], "left_out"), "") << "a number, told with the next line";
  const auto own = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return absl::StrContains(line, "CancelJob") && !absl::StrContains(line, "ann");
  });
  EXPECT_GT(own, 20);
  EXPECT_EQ(LeftOutIn(lines), kCalls - own) << "none is forgotten";
}

TEST(AuditLogTest, StrangersHaveTenLinesASecondAndAddress) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  auto log = *AuditLog::Open({.path = path});
  for (int i = 0; i < 1000; ++i) log->Write(Strangers(i % 999, absl::StrCat("ipv4:10.0.0.7:", 1000 + i)));
  EXPECT_EQ(Lines(path).size(), 10u);
  log->Write(Strangers(500, "ipv4:10.0.0.8:1"));
  log->Write(Record("known"));
  // One line tells, and not again for a minute.
  std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 13u);
  EXPECT_EQ(lines[10],
            R"({"time":"2027-01-15T08:00:00.500Z","peer":"ipv4:10.0.0.7","code":"UNAUTHENTICATED","left_out":990})");
  for (int i = 0; i < 15; ++i) log->Write(Strangers(2000, "ipv4:10.0.0.7:1"));
  EXPECT_EQ(Lines(path).size(), 23u);
  log.reset();
  lines = Lines(path);
  ASSERT_EQ(lines.size(), 24u);
  EXPECT_EQ(LeftOutIn(lines), 995);
}

AuditRecord Refused(const Caller& caller, const std::string& code, int64_t milliseconds = 0) {
  return {absl::FromUnixMillis(1'800'000'000'000 + milliseconds),
          caller,
          "ipv4:10.0.0.9:1",
          "CancelJob",
          "01job",
          "",
          code};
}

TEST(AuditLogTest, WhatMayHaveChangedSomethingHasItsLine) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto log = *AuditLog::Open({.path = path});
  const Caller ann{"ann", v1::SUBMITTER, "01abc"}, root{"root", v1::ADMIN, "01root"};
  AuditRecord made = Refused(ann, "NOT_FOUND");
  made.made = "01new";
  size_t count = 0;
  for (const AuditRecord& record :
       {Refused(ann, "OK"), Refused(ann, "CANCELLED"), Refused(ann, "DEADLINE_EXCEEDED"), Refused(ann, "INTERNAL"),
        made, Refused(root, "NOT_FOUND"), Refused(Anybody(), "INVALID_ARGUMENT")}) {
    for (int i = 0; i < 100; ++i) log->Write(record);
    EXPECT_EQ(Lines(path).size(), count += 100) << record.code;
  }
}

TEST(AuditLogTest, AUsersRefusedCallsCannotPushOthersLinesOut) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  constexpr int64_t kMaxBytes = 80'000;
  auto log = *AuditLog::Open({.path = path, .max_bytes = kMaxBytes, .keep = 1});
  AuditRecord evidence = Record("evidence");
  evidence.caller = {"root", v1::ADMIN, "01root"};
  log->Write(evidence);
  // For days, each with the lines of its second; whoever only looks is refused by the server or hangs up before.
  constexpr int kCalls = 100'000;
  for (int i = 0; i < kCalls; ++i) {
    log->Write(
        Refused({"vic", v1::VIEWER, "01vic"}, i % 2 == 0 ? "PERMISSION_DENIED" : "CANCELLED", int64_t{i} * 2000));
    log->Write(
        Refused({"sue", v1::SUBMITTER, "01sue"}, i % 2 == 0 ? "NOT_FOUND" : "INVALID_ARGUMENT", int64_t{i} * 2000 + 1));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".1")) << "no file was begun for them";
  EXPECT_LE(std::filesystem::file_size(path), kMaxBytes / 8 + 2000);
  AuditRecord later = Record("later");
  later.time += absl::Hours(24 * 30);
  log->Write(later);
  log.reset();
  const std::vector<std::string> lines = Lines(path);
  EXPECT_EQ(FieldOf(lines.front(), "resource"), "evidence");
  EXPECT_EQ(FieldOf(lines.back(), "resource"), "later");
  for (const std::string user : {"vic", "sue"}) {
    std::vector<std::string> of_user;
    for (const std::string& line : lines) {
      if (FieldOf(line, "user") == user) of_user.push_back(line);
    }
    const auto own = std::count_if(of_user.begin(), of_user.end(),
                                   [](const std::string& line) { return absl::StrContains(line, "CancelJob"); });
    EXPECT_GT(own, 20) << user;
    EXPECT_EQ(LeftOutIn(of_user), kCalls - own) << user << ": none is forgotten";
  }
}

TEST(AuditLogTest, AUsersRefusedCallsHaveTenLinesASecond) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  auto log = *AuditLog::Open({.path = path});
  for (int i = 0; i < 500; ++i) {
    log->Write(Refused({"vic", v1::VIEWER, absl::StrCat("01vic", i)}, "PERMISSION_DENIED", i));
  }
  EXPECT_EQ(Lines(path).size(), 10u) << "whichever token it is";
  log->Write(Refused({"sue", v1::SUBMITTER, "01sue"}, "NOT_FOUND", 500));
  std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[10], R"({"time":"2027-01-15T08:00:00.500Z","user":"vic","left_out":490})");
  EXPECT_EQ(FieldOf(lines[11], "user"), "sue");
  // Where there are very many users, the last of them share their lines of a second.
  for (int i = 0; i < 3000; ++i) {
    log->Write(Refused({absl::StrCat("user", i), v1::VIEWER, "01x"}, "PERMISSION_DENIED", 600));
  }
  log->Write(Refused({"vic", v1::VIEWER, "01vic"}, "PERMISSION_DENIED", 2000));
  log.reset();
  lines = Lines(path);
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("T08:00:02.000Z"), HasSubstr(R"("user":"vic")"))));
  const auto own = std::count_if(lines.begin(), lines.end(),
                                 [](const std::string& line) { return absl::StrContains(line, "CancelJob"); });
  EXPECT_LT(own, 1100);
  EXPECT_EQ(own + LeftOutIn(lines), 500 + 1 + 3000 + 1) << "none is forgotten";
}

TEST(PeerTest, ConnectionsOfOneClientHaveOneAddress) {
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:51334"), "ipv4:10.0.0.7");
  EXPECT_EQ(PeerAddress("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:51334"), "ipv6:2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:[2001:db8:1:2::9]:1"), "ipv6:2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:%5Bfe80::1%25eth0%5D:1"), "ipv6:fe80::/64");
  EXPECT_EQ(PeerAddress("ipv6:%5B::ffff:10.0.0.7%5D:1"), "ipv4:10.0.0.7");
  EXPECT_EQ(PeerAddress("ipv6:%5B::1%5D:1"), "ipv6:::1");
  EXPECT_EQ(PeerAddress("unix:/run/x"), "unix:");
  for (const char* other : {"", "ipv6:", "ipv6:zz:1", "ipv4:", "vsock:3:4"}) EXPECT_EQ(PeerAddress(other), other);
}

TEST(AuditLogTest, AppendsToAFileOfItsOwner) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  for (int run = 0; run < 2; ++run) {
    const auto log = AuditLog::Open({.path = path});
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Write(Record("01job"));
  }
  EXPECT_EQ(Lines(path).size(), 2u);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(AuditLog::Open({.path = dir.path()}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(AuditLog::Open({.path = dir.path() + "/no/audit.log"}).ok());
}

TEST(AuditLogTest, FilesMoveOnAndTheOldestGoes) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto size = static_cast<int64_t>(FormatAuditLine(Record("0")).size()) + 1;
  const auto log = *AuditLog::Open({.path = path, .max_bytes = 2 * size, .keep = 2});
  for (int i = 0; i < 9; ++i) log->Write(Record(absl::StrCat(i)));
  const auto resources = [](const std::string& file) {
    std::vector<std::string> names;
    for (const std::string& line : Lines(file)) names.push_back(FieldOf(line, "resource"));
    return names;
  };
  EXPECT_THAT(resources(path), ElementsAre("8"));
  EXPECT_THAT(resources(path + ".1"), ElementsAre("6", "7"));
  EXPECT_THAT(resources(path + ".2"), ElementsAre("4", "5"));
  EXPECT_FALSE(std::filesystem::exists(path + ".3"));
}

TEST(AuditLogTest, WhoMovesTheFileAwayGetsANewOne) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto log = *AuditLog::Open({.path = path});
  log->Write(Record("1"));
  std::filesystem::rename(path, path + ".old");
  log->Write(Record("2"));
  EXPECT_EQ(Lines(path + ".old").size(), 1u);
  EXPECT_EQ(Lines(path).size(), 1u);
}

TEST(AuditLogTest, WhatIsLostIsToldOnceAndCounted) {
  TempDir dir;
  const std::string folder = dir.path() + "/logs";
  std::filesystem::create_directory(folder);
  std::vector<std::string> told;
  const auto log =
      *AuditLog::Open({.path = folder + "/audit.log", .log = [&](const std::string& text) { told.push_back(text); }});
  log->Write(Record("1"));
  EXPECT_THAT(told, IsEmpty());
  std::filesystem::rename(folder, folder + ".away");
  for (int i = 0; i < 3; ++i) log->Write(Record("2"));
  ASSERT_EQ(told.size(), 1u);
  std::filesystem::rename(folder + ".away", folder);
  log->Write(Record("3"));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[1], testing::HasSubstr("misses 3 calls"));
  EXPECT_EQ(Lines(folder + "/audit.log").size(), 2u);
}

// Files of this process end at this many bytes, as they do where the disk is full.
class FullAt {
 public:
  explicit FullAt(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullAt() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  const sighandler_t handler_;
  rlimit before_{};
};

TEST(AuditLogTest, NoPartOfALineStays) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  std::vector<std::string> told;
  const auto log = *AuditLog::Open({.path = path, .log = [&](const std::string& text) { told.push_back(text); }});
  log->Write(Record("1"));
  const auto before = std::filesystem::file_size(path);
  {
    const FullAt full(before + 10);
    log->Write(Record("2"));
    log->Write(Record("3"));
    EXPECT_EQ(std::filesystem::file_size(path), before);
  }
  log->Write(Record("4"));
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(FieldOf(lines[1], "resource"), "4");
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[1], HasSubstr("misses 2 calls"));
}

TEST(AuditLogTest, WhatIsRefusedBeforehandIsBoundedWhateverItsCode) {
  for (const auto& [nothing, lines] : {std::pair(true, 10u), std::pair(false, 30u)}) {
    TempDir dir;
    const std::string path = dir.path() + "/audit.log";
    auto log = *AuditLog::Open({.path = path});
    AuditRecord record = Record("1");
    record.code = "UNAVAILABLE";
    record.changed_nothing = nothing;
    for (int i = 0; i < 30; ++i) log->Write(record);
    EXPECT_EQ(Lines(path).size(), lines) << nothing;
  }
}

TEST(AuditLogTest, ALineBeginsBehindAPartOfOne) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  std::ofstream(path) << R"({"time":"2026-01-3)";
  for (const char* name : {"1", "2"}) (*AuditLog::Open({.path = path}))->Write(Record(name));
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(FieldOf(lines[1], "resource"), "1");
  EXPECT_EQ(FieldOf(lines[2], "resource"), "2");
}

TEST(AuditLogTest, CallsThatWereLeftOutStayCountedUntilALineTells) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  std::vector<std::string> told;
  auto log = *AuditLog::Open({.path = path, .log = [&](const std::string& text) { told.push_back(text); }});
  for (int i = 0; i < 15; ++i) log->Write(Strangers(0, "ipv4:10.0.0.7:1"));
  {
    const FullAt full(std::filesystem::file_size(path));
    log->Write(Record("1"));
  }
  log->Write(Record("2"));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[1], HasSubstr("misses 1 calls"));
  const std::vector<std::string> lines = Lines(path);
  EXPECT_EQ(lines.size(), 12u);
  EXPECT_EQ(LeftOutIn(lines), 5);
}

TEST(AuditLogTest, LinesOfSeveralThreadsAreWhole) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto log = *AuditLog::Open({.path = path});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) log->Write(Record("x"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) EXPECT_EQ(line, lines[0]);
}

}  // namespace
}  // namespace ampd
