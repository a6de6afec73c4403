#include "server/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/address.h"
#include "server/config/http_url.h"

namespace ampd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Config : public testing::Test {
 protected:
  absl::StatusOr<Configuration> Load(std::vector<std::string> flags,
                                     std::map<std::string, std::string> environment = {},
                                     const std::string& file = "") {
    const std::string path = testing::TempDir() + "/config_test_" + std::to_string(getpid()) + ".yaml";
    if (!file.empty()) {
      std::ofstream(path) << file;
      flags.insert(flags.end(), {"--config", path});
    }
    if (!environment.count("AMPD_WORKER")) environment["AMPD_WORKER"] = "/bin/true";
    const Environment lookup = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    };
    return LoadConfiguration(flags, lookup, "/programs");
  }
  void ExpectRefused(const absl::StatusOr<Configuration>& loaded, const std::string& text) {
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(text));
  }
};

TEST_F(Config, HasDefaultsForEverything) {
  const auto loaded = Load({});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const v1::ServerConfig& config = loaded->config;
  EXPECT_EQ(config.listen(), "127.0.0.1:7070");
  EXPECT_EQ(config.http(), "127.0.0.1:7071");
  EXPECT_EQ(config.state_dir(), std::filesystem::current_path().string() + "/ampd-state");
  EXPECT_FALSE(config.has_cpu_devices());
  EXPECT_EQ(config.nvml_library(), "libnvidia-ml.so.1");
  EXPECT_EQ(config.reattach_timeout_seconds(), 600);
  EXPECT_EQ(config.heartbeat_timeout_seconds(), 60);
  EXPECT_EQ(config.drain_timeout_seconds(), 60);
  EXPECT_EQ(config.max_spec_bytes(), 1 << 20);
  EXPECT_EQ(config.max_upload_bytes(), int64_t{4} << 30);
  EXPECT_EQ(config.max_uploads_bytes(), int64_t{64} << 30);
  EXPECT_EQ(config.data_roots_size(), 0);
  EXPECT_EQ(config.mirror_dir(), "");
  EXPECT_EQ(config.on_stop(), v1::ServerConfig::DRAIN);
  EXPECT_EQ(config.retention().step_reports(), 10000);
  EXPECT_EQ(config.retention().checkpoint_bytes(), 0);
  EXPECT_EQ(config.retention().upload_days(), 0);
  EXPECT_EQ(config.retention().file_days(), 0);
  EXPECT_EQ(config.max_model_bytes_per_user(), 0);
  EXPECT_EQ(config.log_format(), v1::ServerConfig::TEXT);
  EXPECT_FALSE(config.insecure());
  EXPECT_EQ(config.default_precision_mode(), v1::PrecisionSpec::FP32);
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST_F(Config, ANoticeIsLookedForAtAnAddress) {
  const auto loaded = Load({}, {}, "spot_notice_url: 'http://169.254.169.254/latest/meta-data/spot/instance-action'\n");
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.spot_notice_seconds(), 30);
  const auto url = ParseHttpUrl("http://[fe80::1]:8080?x=1");
  EXPECT_FALSE(url.ok()) << "a query needs a path";
  const auto whole = ParseHttpUrl("http://[::1]:8080/a?b=c");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->host, "::1");
  EXPECT_EQ(whole->port, 8080);
  EXPECT_EQ(whole->path, "/a?b=c");
  EXPECT_EQ(whole->ToString(), "http://[::1]:8080/a?b=c");
  EXPECT_EQ(ParseHttpUrl("http://127.0.0.1")->path, "/");
  EXPECT_EQ(ParseHttpUrl("http://127.0.0.1")->port, 80);
  for (const char* bad :
       {"https://127.0.0.1/", "http://metadata/x", "http://", "http://127.0.0.1:0/", "ftp://127.0.0.1",
        "http://127.0.0.1:99999/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nX: y", ""}) {
    EXPECT_FALSE(ParseHttpUrl(bad).ok()) << bad;
  }
  ExpectRefused(Load({}, {}, "spot_notice_url: 'https://10.0.0.1/'\n"), "spot_notice_url: \"https://10.0.0.1/\"");
  ExpectRefused(Load({}, {}, "spot_notice_seconds: 0\n"), "spot_notice_seconds: 0 is not from 1");
}

TEST_F(Config, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string file = "listen: '127.0.0.1:1'\nhttp: '127.0.0.1:2'\ncpu_devices: 3\ndrain_timeout_seconds: 5\n";
  const std::map<std::string, std::string> environment = {{"AMPD_LISTEN", "127.0.0.1:10"},
                                                          {"AMPD_HTTP", "127.0.0.1:20"}};
  const auto loaded = Load({"--listen", "127.0.0.1:100"}, environment, file);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.listen(), "127.0.0.1:100");
  EXPECT_EQ(loaded->config.http(), "127.0.0.1:20");
  EXPECT_EQ(loaded->config.cpu_devices(), 3);
  EXPECT_EQ(loaded->config.drain_timeout_seconds(), 5);
  EXPECT_EQ(loaded->config.heartbeat_timeout_seconds(), 60);
}

TEST_F(Config, TheDefaultPrecisionComesFromEveryLevelInAnyCase) {
  const auto mode = [this](std::vector<std::string> flags, std::map<std::string, std::string> environment) {
    const auto loaded = Load(std::move(flags), std::move(environment), "default_precision_mode: tf32\n");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->config.default_precision_mode() : v1::PrecisionSpec::MODE_UNSPECIFIED;
  };
  EXPECT_EQ(mode({}, {}), v1::PrecisionSpec::TF32);
  EXPECT_EQ(mode({}, {{"AMPD_DEFAULT_PRECISION", "bf16"}}), v1::PrecisionSpec::BF16);
  EXPECT_EQ(mode({"--default-precision", "Fp8"}, {{"AMPD_DEFAULT_PRECISION", "bf16"}}), v1::PrecisionSpec::FP8);
  ExpectRefused(Load({}, {{"AMPD_DEFAULT_PRECISION", "fp12"}}),
                "AMPD_DEFAULT_PRECISION: \"fp12\" is no precision mode");
  ExpectRefused(Load({"--default-precision", ""}), "--default-precision: \"\" is no precision mode");
  ExpectRefused(Load({"--default-precision", "AUTO"}), "default_precision_mode: AUTO is for jobs that ask for it");
}

TEST_F(Config, AHigherLevelReplacesTheDataRootsAsAWhole) {
  const std::string file = "data_roots: [/usr]\n";
  EXPECT_THAT(Load({}, {}, file)->config.data_roots(), ElementsAre("/usr"));
  EXPECT_THAT(Load({}, {{"AMPD_DATA_ROOTS", "/etc:/tmp/"}}, file)->config.data_roots(), ElementsAre("/etc", "/tmp"));
  EXPECT_THAT(Load({"--data-root", "/usr/../bin", "--data-root", "/"}, {{"AMPD_DATA_ROOTS", "/etc"}}, file)
                  ->config.data_roots(),
              ElementsAre("/bin", "/"));
}

TEST_F(Config, RefusesToServeOtherMachinesUnlessToldTo) {
  ExpectRefused(Load({"--listen", "0.0.0.0:7070"}), "there are no TLS and tokens");
  ExpectRefused(Load({"--listen", "[::]:7070"}), "reachable from other machines");
  ExpectRefused(Load({"--listen", "gpu-box:7070"}), "reachable from other machines");
  for (const char* loopback : {"localhost:0", "127.9.9.9:1", "[::1]:7070"}) {
    EXPECT_TRUE(Load({"--listen", loopback}).ok()) << loopback;
  }
  const auto loaded = Load({"--listen", "0.0.0.0:7070", "--insecure"});
  ASSERT_TRUE(loaded.ok());
  EXPECT_THAT(loaded->warnings, ElementsAre(HasSubstr("insecure")));
  EXPECT_EQ(Load({}, {}, "listen: '0.0.0.0:1'\ninsecure: true\n")->warnings.size(), 1u);
}

TEST_F(Config, OtherMachinesNeedTlsAndTokensBoth) {
  const std::vector<std::string> open = {"--listen", "0.0.0.0:1"}, tls = {"--tls-cert", "c.pem", "--tls-key", "k.pem"};
  const auto with = [&](std::vector<std::vector<std::string>> parts) {
    std::vector<std::string> flags = open;
    for (const auto& part : parts) flags.insert(flags.end(), part.begin(), part.end());
    return Load(flags);
  };
  ExpectRefused(with({tls}), "there are no tokens");
  ExpectRefused(with({{"--auth"}}), "there are no TLS");
  const auto both = with({tls, {"--auth"}});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->warnings, IsEmpty());
  EXPECT_EQ(both->config.tls().certificate(), "c.pem");
  EXPECT_EQ(both->config.tls().private_key(), "k.pem");
  EXPECT_THAT(with({tls, {"--insecure"}})->warnings, ElementsAre(HasSubstr("without tokens (insecure)")));
  EXPECT_THAT(with({{"--auth", "--insecure"}})->warnings, ElementsAre(HasSubstr("reads the tokens")));
  EXPECT_TRUE(Load({"--auth"}).ok()) << "tokens alone are for loopback";
}

TEST_F(Config, WarnsOfAnHttpPortThatOthersReachAsFarAsItIsOpen) {
  const auto warnings = [this](std::vector<std::string> flags, const std::string& file = "") {
    flags.insert(flags.end(), {"--http", "0.0.0.0:1", "--tls-cert", "c", "--tls-key", "k"});
    const auto loaded = Load(flags, {}, file);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->warnings : std::vector<std::string>();
  };
  const auto metrics = HasSubstr("figures in /metrics");
  const auto refused = [](const std::string& why) {
    return AllOf(HasSubstr("the web page refuse all requests on 0.0.0.0:1"), HasSubstr(why), HasSubstr("--http-tls"));
  };
  EXPECT_THAT(warnings({}), ElementsAre(refused("in plain text")));
  EXPECT_THAT(warnings({"--http-tls"}), ElementsAre(refused("without tokens")));
  EXPECT_THAT(warnings({"--auth"}),
              ElementsAre(refused("in plain text"), AllOf(metrics, HasSubstr("in plain text and without tokens"))));
  EXPECT_THAT(warnings({"--auth", "--http-tls"}), ElementsAre(AllOf(metrics, Not(HasSubstr("plain")))));
  EXPECT_THAT(warnings({"--auth", "--http-tls", "--tls-client-ca", "a"}), IsEmpty());
  EXPECT_THAT(warnings({"--insecure"}), ElementsAre(HasSubstr("in plain text (insecure): anyone who reaches it")));
  EXPECT_THAT(warnings({"--insecure", "--http-tls"}), ElementsAre(HasSubstr("without tokens (insecure)")));
  EXPECT_THAT(warnings({"--insecure", "--http-tls", "--tls-client-ca", "a"}),
              ElementsAre(HasSubstr("anyone with a certificate controls")));
  EXPECT_THAT(warnings({"--insecure", "--auth"}), ElementsAre(HasSubstr("reads the tokens"), metrics));
  EXPECT_THAT(warnings({"--insecure", "--auth", "--http-tls"}), ElementsAre(metrics));
}

TEST_F(Config, TlsOfTheHttpPortComesFromFlagEnvironmentAndFile) {
  const std::string file = "tls: {certificate: a, private_key: b, http: true}\n";
  EXPECT_TRUE(Load({}, {}, file)->config.tls().http());
  EXPECT_FALSE(Load({}, {{"AMPD_HTTP_TLS", "false"}}, file)->config.tls().http());
  EXPECT_TRUE(Load({"--http-tls"}, {{"AMPD_HTTP_TLS", "false"}}, file)->config.tls().http());
  EXPECT_FALSE(Load({}, {{"AMPD_HTTP_TLS", "false"}})->config.has_tls());
  ExpectRefused(Load({"--http-tls"}), "tls.certificate: required");
  ExpectRefused(Load({}, {{"AMPD_HTTP_TLS", "true"}}), "tls.private_key: required");
  ExpectRefused(Load({}, {{"AMPD_HTTP_TLS", "often"}}, file), "AMPD_HTTP_TLS");
}

TEST_F(Config, AccessComesFromFlagEnvironmentAndFile) {
  const std::string file = "tls: {certificate: a, private_key: b, client_ca: c}\nauth: {tokens: true}\naudit_log: ''\n";
  const auto loaded =
      Load({"--tls-key", "k"}, {{"AMPD_TLS_CERT", "e"}, {"AMPD_TLS_KEY", "e"}, {"AMPD_INIT_ADMIN_TOKEN", "t"}}, file);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.tls().certificate(), "e");
  EXPECT_EQ(loaded->config.tls().private_key(), "k");
  EXPECT_EQ(loaded->config.tls().client_ca(), "c");
  EXPECT_EQ(loaded->config.auth().init_admin_token(), "t");
  EXPECT_EQ(loaded->config.audit_log(), "");
  EXPECT_FALSE(Load({}, {{"AMPD_AUTH", "false"}}, "auth: {tokens: true}\n")->config.auth().tokens());
  ExpectRefused(Load({}, {{"AMPD_AUTH", "perhaps"}}), "AMPD_AUTH");
  const auto plain = Load({});
  EXPECT_FALSE(plain->config.has_tls());
  EXPECT_FALSE(plain->config.auth().tokens());
  EXPECT_EQ(plain->config.audit_log(), plain->config.state_dir() + "/audit.log");
}

TEST_F(Config, WhatAccessNeedsIsNamed) {
  ExpectRefused(Load({"--tls-cert", "c"}), "tls.private_key: required");
  ExpectRefused(Load({"--tls-client-ca", "c"}), "tls.certificate: required");
  ExpectRefused(Load({"--init-admin-token", "f"}), "auth.init_admin_token: needs auth.tokens");
  ExpectRefused(Load({}, {}, "auth: {certificate_role: VIEWER}\n"), "auth.certificate_role: needs auth.tokens");
  ExpectRefused(Load({}, {}, "auth: {tokens: true, certificate_role: VIEWER}\n"), "needs tls.client_ca");
  ExpectRefused(Load({}, {},
                     "tls: {certificate: a, private_key: b, client_ca: c}\n"
                     "auth: {tokens: true, certificate_role: ADMIN}\n"),
                "administrators need tokens");
  ExpectRefused(Load({}, {}, "auth: {max_priority: 5}\n"), "auth.max_priority: needs auth.tokens");
  ExpectRefused(Load({}, {}, "auth: {tokens: true, max_priority: 1001}\n"),
                "auth.max_priority: 1001 is not from -1000");
  ExpectRefused(Load({}, {}, "audit_log_bytes: 0\n"), "audit_log_bytes");
}

TEST_F(Config, WithTokensOnlyAdministratorsPreferJobs) {
  EXPECT_FALSE(Load({})->config.auth().has_max_priority());
  EXPECT_TRUE(Load({"--auth"})->config.auth().has_max_priority());
  EXPECT_EQ(Load({"--auth"})->config.auth().max_priority(), 0);
  EXPECT_EQ(Load({}, {}, "auth: {tokens: true, max_priority: 100}\n")->config.auth().max_priority(), 100);
}

TEST_F(Config, WorkersCanBeAnotherUserAndNotRoot) {
  ExpectRefused(Load({}, {}, "worker_user: no-such-user\n"), "worker_user: no user of this machine is called");
  ExpectRefused(Load({}, {}, "worker_user: root\n"), "worker_user: \"root\" is root");
  ExpectRefused(Load({}, {}, "worker_user: 0\n"), "worker_user");
}

TEST_F(Config, EmptyVariablesAreUnset) {
  std::map<std::string, std::string> empty;
  for (const char* name : {"AMPD_LISTEN", "AMPD_HTTP", "AMPD_STATE_DIR", "AMPD_DATA_ROOTS", "AMPD_CPU_DEVICES",
                           "AMPD_DEFAULT_PRECISION", "AMPD_LOG_FORMAT", "AMPD_TLS_CERT", "AMPD_TLS_KEY",
                           "AMPD_TLS_CLIENT_CA", "AMPD_AUTH", "AMPD_INIT_ADMIN_TOKEN"}) {
    empty[name] = "";
  }
  const std::string file = "listen: '127.0.0.1:9'\ndata_roots: [/usr]\ncpu_devices: 3\nauth: {tokens: true}\n";
  const auto loaded = Load({}, empty, file);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.SerializeAsString(), Load({}, {}, file)->config.SerializeAsString());
  EXPECT_FALSE(loaded->config.has_tls());
  empty["AMPD_WORKER"] = "";
  ExpectRefused(Load({}, empty, file), "no program at /programs/ampd-worker");
  EXPECT_EQ(Load({}, {{"AMPD_NVML_LIBRARY", ""}})->config.nvml_library(), "") << "no GPUs are looked for";
}

TEST_F(Config, HttpBeyondLoopbackIsWarnedOfWhereTokensAreNeeded) {
  for (const char* address : {"0.0.0.0:7071", "[::]:1", "gpu-box:7071"}) {
    EXPECT_THAT(Load({"--auth", "--http", address})->warnings, ElementsAre(HasSubstr("refuse"), HasSubstr("/metrics")))
        << address;
    EXPECT_THAT(Load({"--http", address})->warnings, ElementsAre(HasSubstr("refuse"))) << "of /metrics nothing is kept";
  }
  EXPECT_THAT(Load({"--auth", "--http", "[::1]:7071"})->warnings, IsEmpty());
  EXPECT_THAT(Load({"--insecure", "--http", "0.0.0.0:1"})->warnings, ElementsAre(HasSubstr("JSON API")));
  EXPECT_THAT(Load({"--insecure", "--http", "127.0.0.1:1"})->warnings, IsEmpty());
}

class PrivatePlaces : public Config {
 protected:
  PrivatePlaces() {
    for (const char* name : {"/data/sub", "/state", "/keys"}) std::filesystem::create_directories(folder_ + name);
  }
  ~PrivatePlaces() override { std::filesystem::remove_all(folder_); }

  // Refused with tokens, warned of without.
  void ExpectOpen(const std::string& root, const std::string& what, const std::vector<std::string>& flags,
                  const std::string& file = "") {
    std::vector<std::string> all = {"--data-root", root};
    all.insert(all.end(), flags.begin(), flags.end());
    if (std::count(all.begin(), all.end(), "--state-dir") == 0)
      all.insert(all.end(), {"--state-dir", folder_ + "/state"});
    const auto loaded = Load(all, {}, file);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->warnings, ElementsAre(HasSubstr("data_roots: " + root + " " + what)));
    all.push_back("--auth");
    ExpectRefused(Load(all, {}, file), "data_roots: " + root + " " + what);
  }

  const std::string folder_ =
      std::filesystem::canonical(testing::TempDir()).string() + "/private_places_" + std::to_string(getpid());
};

TEST_F(PrivatePlaces, AreNotToLieInDataRoots) {
  const std::string data = folder_ + "/data", state = folder_ + "/state";
  ExpectOpen(folder_, "holds state_dir", {});
  ExpectOpen("/", "holds state_dir", {});
  ExpectOpen(state, "holds state_dir", {});
  std::filesystem::create_directories(state + "/checkpoints");
  ExpectOpen(state + "/checkpoints", "lies in state_dir", {});
  ExpectOpen(data, "holds mirror_dir", {}, "mirror_dir: " + data + "/sub/copies\n");
  ExpectOpen(data + "/sub", "lies in mirror_dir", {}, "mirror_dir: " + data + "\n");
  ExpectOpen(data, "holds audit_log", {}, "audit_log: " + data + "/audit.log\n");
  ExpectOpen(data, "holds tls.private_key", {"--tls-cert", "c", "--tls-key", data + "/sub/k.pem"});
  const auto admin = Load({"--data-root", data, "--state-dir", state, "--auth", "--init-admin-token", data + "/a"});
  ExpectRefused(admin, "holds auth.init_admin_token");
}

TEST_F(PrivatePlaces, AreFoundWhereverLinksHideThem) {
  namespace fs = std::filesystem;
  fs::create_directory_symlink(folder_ + "/state", folder_ + "/data/link");
  fs::create_directory_symlink(folder_ + "/data", folder_ + "/other");
  ExpectOpen(folder_ + "/data/link", "holds state_dir", {});
  // The state directory's own name is a link into the root, and what is beneath it is not there yet.
  ExpectOpen(folder_ + "/data", "holds state_dir", {"--state-dir", folder_ + "/other/new/state"});
}

TEST_F(PrivatePlaces, BesideDataRootsAreFine) {
  std::filesystem::create_directories(folder_ + "/state-data");
  const auto loaded = Load({"--data-root", folder_ + "/state-data", "--data-root", folder_ + "/data", "--state-dir",
                            folder_ + "/state", "--auth", "--init-admin-token", folder_ + "/keys/admin"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST_F(Config, NamesEverythingThatIsWrong) {
  const auto loaded = Load({"--listen", "nonsense", "--cpu-devices", "-1", "--data-root", "/no/such/folder"},
                           {{"AMPD_WORKER", "/no/such/worker"}}, "heartbeat_timeout_seconds: 0\n");
  for (const char* text :
       {"listen: \"nonsense\" is not HOST:PORT", "cpu_devices: -1 is not from 0 to 1024",
        "no folder at /no/such/folder", "no program at /no/such/worker", "heartbeat_timeout_seconds: 0"}) {
    ExpectRefused(loaded, text);
  }
}

TEST_F(Config, ChecksWhatIsKeptAndCopied) {
  const auto loaded =
      Load({}, {}, "mirror_dir: copies/\nretention: {step_reports: 0, checkpoint_days: 7}\non_stop: DETACH\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.mirror_dir(), std::filesystem::current_path().string() + "/copies");
  EXPECT_EQ(loaded->config.retention().step_reports(), 0);
  EXPECT_EQ(loaded->config.on_stop(), v1::ServerConfig::DETACH);
  ExpectRefused(Load({}, {}, "retention: {event_days: -1}\n"), "retention.event_days: -1 is not from 0 to 36600");
  ExpectRefused(Load({}, {}, "retention: {upload_days: 40000}\n"),
                "retention.upload_days: 40000 is not from 0 to 36600");
  ExpectRefused(Load({}, {}, "retention: {file_days: -1}\n"), "retention.file_days: -1 is not from 0 to 36600");
  ExpectRefused(Load({"--state-dir", "/s"}, {}, "mirror_dir: /s/checkpoints\n"),
                "mirror_dir: /s/checkpoints is where the checkpoints themselves are");
}

TEST_F(Config, RefusesWhatItCannotRead) {
  ExpectRefused(Load({"--no-such-flag"}), "--no-such-flag");
  ExpectRefused(Load({"--cpu-devices", "many"}), "cpu-devices");
  ExpectRefused(Load({}, {{"AMPD_CPU_DEVICES", "many"}}), "AMPD_CPU_DEVICES: \"many\"");
  ExpectRefused(Load({}, {}, "lisen: '127.0.0.1:1'\n"), "did you mean listen");
  ExpectRefused(Load({}, {}, "listen: '127.0.0.1:1'\nhttp: [1]\n"), ".yaml:2");
  EXPECT_EQ(Load({"--config", "/no/such/file"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load({"--config", "/tmp"}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Config, LooksForTheWorkerBesideTheProgram) {
  ExpectRefused(LoadConfiguration(
                    {}, [](const std::string&) { return std::nullopt; }, "/programs"),
                "/programs/ampd-worker");
}

TEST_F(Config, PrintsHelpAndVersion) {
  EXPECT_THAT(*Load({"--help"})->print, HasSubstr("--state-dir"));
  EXPECT_EQ(*Load({"--version"})->print, std::string("ampd ") + AMPD_VERSION + "\n");
}

TEST(ParseAddress, ReadsHostAndPort) {
  EXPECT_EQ(ParseAddress("a.b:80")->ToString(), "a.b:80");
  EXPECT_EQ(ParseAddress("[::1]:0")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:0")->ToString(), "[::1]:0");
  for (const char* bad : {"", ":", "host", "host:", ":1", "host:65536", "host:-1", "host:+1", "::1:1", "host: 1",
                          "host:1x", "[]:1", "host:99999999999999999999"}) {
    EXPECT_FALSE(ParseAddress(bad).ok()) << bad;
  }
}

TEST_F(Config, LogFormat) {
  EXPECT_EQ(Load({}, {{"AMPD_LOG_FORMAT", "json"}})->config.log_format(), v1::ServerConfig::JSON);
  EXPECT_EQ(Load({"--log-format", "TEXT"}, {{"AMPD_LOG_FORMAT", "json"}})->config.log_format(), v1::ServerConfig::TEXT);
  EXPECT_EQ(Load({}, {}, "log_format: JSON\n")->config.log_format(), v1::ServerConfig::JSON);
  ExpectRefused(Load({"--log-format", "xml"}), "\"xml\" is neither TEXT nor JSON");
}

}  // namespace
}  // namespace ampd
