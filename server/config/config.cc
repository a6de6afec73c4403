#include "server/config/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "proto/spec/device_models.h"
#include "proto/spec/yaml.h"
#include "server/config/address.h"
#include "server/config/http_url.h"
#include "server/launch/worker_account.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string config_file;
  std::optional<std::string> listen, http, state_dir, worker, default_precision, nvml_library, log_format;
  std::optional<std::string> tls_cert, tls_key, tls_client_ca, init_admin_token;
  std::vector<std::string> data_roots;
  std::optional<int32_t> cpu_devices;
  bool auth = false;
  bool http_tls = false;
  bool insecure = false;
  bool no_tensorboard = false;
};

void Describe(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", absl::StrCat("ampd ", AMPD_VERSION));
  app.add_option("--config", flags.config_file, "configuration file, YAML or JSON (see config.proto)");
  app.add_option("--listen", flags.listen, "HOST:PORT of the gRPC API; port 0 picks one [127.0.0.1:7070]");
  app.add_option("--http", flags.http, "HOST:PORT of /metrics, /healthz, /readyz and the JSON API [127.0.0.1:7071]");
  app.add_option("--state-dir", flags.state_dir, "folder of the database and the checkpoints [ampd-state]");
  app.add_option("--data-root", flags.data_roots, "folder beneath which datasets may lie; may be repeated");
  app.add_option("--cpu-devices", flags.cpu_devices,
                 "virtual CPU devices; one job runs on each [1, or 0 where jobs can use a GPU]");
  app.add_option("--nvml-library", flags.nvml_library,
                 "NVIDIA's management library, by name or path; empty: no GPUs [libnvidia-ml.so.1]");
  app.add_option("--default-precision", flags.default_precision,
                 "mode of jobs that name none: FP32, TF32, FP16, BF16 or FP8 [FP32]");
  app.add_option("--tls-cert", flags.tls_cert, "PEM file of the server's certificate; TLS on the gRPC port");
  app.add_option("--tls-key", flags.tls_key, "PEM file of its private key");
  app.add_option("--tls-client-ca", flags.tls_client_ca, "PEM file of authorities; clients must show a certificate");
  app.add_flag("--http-tls", flags.http_tls, "TLS on the HTTP port as well, with the same files");
  app.add_flag("--auth", flags.auth, "every call needs a token (ampctl tokens)");
  app.add_option("--init-admin-token", flags.init_admin_token,
                 "file for the secret of an ADMIN token, made where none holds");
  app.add_flag("--insecure", flags.insecure, "serve gRPC beyond loopback without both TLS and tokens");
  app.add_flag("--no-tensorboard", flags.no_tensorboard, "keep no event files for TensorBoard");
  app.add_option("--log-format", flags.log_format, "of the daemon's log: TEXT, or JSON, an object a line [TEXT]");
  app.add_option("--worker", flags.worker, "path of ampd-worker [beside ampd]");
  app.footer(
      "Environment: AMPD_LISTEN, AMPD_HTTP, AMPD_STATE_DIR, AMPD_DATA_ROOTS (':' between), AMPD_CPU_DEVICES, "
      "AMPD_WORKER, AMPD_DEFAULT_PRECISION, AMPD_NVML_LIBRARY, AMPD_LOG_FORMAT, AMPD_TLS_CERT, AMPD_TLS_KEY, "
      "AMPD_TLS_CLIENT_CA, AMPD_HTTP_TLS, AMPD_AUTH, AMPD_INIT_ADMIN_TOKEN.\nA flag wins over the environment, "
      "that over the file.");
}

// The text to print for --help and --version; nullopt to go on.
absl::StatusOr<std::optional<std::string>> ParseFlags(std::vector<std::string> arguments, Flags& flags) {
  CLI::App app("Trains neural networks in mixed precision; see ampctl for submitting jobs.", "ampd");
  Describe(app, flags);
  // CLI11 takes its arguments last first, and tells of errors and of --help by exceptions.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return std::optional(app.help());
  } catch (const CLI::CallForVersion& version) {
    return std::optional(absl::StrCat(version.what(), "\n"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (ampd --help lists the flags)"));
  }
  return std::optional<std::string>();
}

absl::StatusOr<v1::ServerConfig> ReadFile(const std::string& path) {
  v1::ServerConfig config;
  if (path.empty()) return config;
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || fs::is_directory(path, error))
    return absl::NotFoundError(absl::StrCat("--config ", path, ": cannot be read"));
  constexpr size_t kMaxBytes = 1 << 20;
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes)
    return absl::InvalidArgumentError(absl::StrCat("--config ", path, ": larger than 1 MiB"));
  AMPD_RETURN_IF_ERROR(ParseYaml(text, path, &config));
  return config;
}

// `source`: the flag or variable that `value` came from.
absl::Status SetDefaultPrecision(absl::string_view source, const std::string& value, v1::ServerConfig& config) {
  v1::PrecisionSpec::Mode mode;
  if (!v1::PrecisionSpec::Mode_Parse(absl::AsciiStrToUpper(value), &mode)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": \"", value, "\" is no precision mode"));
  }
  config.set_default_precision_mode(mode);
  return absl::OkStatus();
}

absl::Status SetLogFormat(absl::string_view source, const std::string& value, v1::ServerConfig& config) {
  v1::ServerConfig::LogFormat format;
  if (!v1::ServerConfig::LogFormat_Parse(absl::AsciiStrToUpper(value), &format)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": \"", value, "\" is neither TEXT nor JSON"));
  }
  config.set_log_format(format);
  return absl::OkStatus();
}

// "true" or "false" of a variable that a file or an orchestrator wrote.
absl::StatusOr<bool> Truth(absl::string_view source, const std::string& value) {
  bool truth = false;
  if (absl::SimpleAtob(value, &truth)) return truth;
  return absl::InvalidArgumentError(absl::StrCat(source, ": \"", value, "\" is neither true nor false"));
}

absl::Status ApplyAccessEnvironment(const Environment& environment, v1::ServerConfig& config) {
  if (auto value = environment("AMPD_TLS_CERT")) config.mutable_tls()->set_certificate(*value);
  if (auto value = environment("AMPD_TLS_KEY")) config.mutable_tls()->set_private_key(*value);
  if (auto value = environment("AMPD_TLS_CLIENT_CA")) config.mutable_tls()->set_client_ca(*value);
  if (auto value = environment("AMPD_INIT_ADMIN_TOKEN")) config.mutable_auth()->set_init_admin_token(*value);
  if (const auto value = environment("AMPD_HTTP_TLS")) {
    AMPD_ASSIGN_OR_RETURN(const bool http, Truth("AMPD_HTTP_TLS", *value));
    // An orchestrator's "false" asks for no TLS.
    if (http || config.has_tls()) config.mutable_tls()->set_http(http);
  }
  const auto tokens = environment("AMPD_AUTH");
  if (!tokens) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(const bool needed, Truth("AMPD_AUTH", *tokens));
  config.mutable_auth()->set_tokens(needed);
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(const Environment& environment, v1::ServerConfig& config) {
  if (auto value = environment("AMPD_LISTEN")) config.set_listen(*value);
  if (auto value = environment("AMPD_HTTP")) config.set_http(*value);
  if (auto value = environment("AMPD_STATE_DIR")) config.set_state_dir(*value);
  if (auto value = environment("AMPD_WORKER")) config.set_worker(*value);
  if (auto value = environment("AMPD_NVML_LIBRARY")) config.set_nvml_library(*value);
  if (auto value = environment("AMPD_DATA_ROOTS")) {
    config.clear_data_roots();
    for (const absl::string_view root : absl::StrSplit(*value, ':', absl::SkipEmpty())) {
      config.add_data_roots(std::string(root));
    }
  }
  if (auto value = environment("AMPD_CPU_DEVICES")) {
    int32_t devices = 0;
    if (!absl::SimpleAtoi(*value, &devices)) {
      return absl::InvalidArgumentError(absl::StrCat("AMPD_CPU_DEVICES: \"", *value, "\" is not a whole number"));
    }
    config.set_cpu_devices(devices);
  }
  if (auto value = environment("AMPD_LOG_FORMAT")) {
    AMPD_RETURN_IF_ERROR(SetLogFormat("AMPD_LOG_FORMAT", *value, config));
  }
  AMPD_RETURN_IF_ERROR(ApplyAccessEnvironment(environment, config));
  const auto precision = environment("AMPD_DEFAULT_PRECISION");
  return precision ? SetDefaultPrecision("AMPD_DEFAULT_PRECISION", *precision, config) : absl::OkStatus();
}

absl::Status ApplyFlags(const Flags& flags, v1::ServerConfig& config) {
  if (flags.listen) config.set_listen(*flags.listen);
  if (flags.http) config.set_http(*flags.http);
  if (flags.state_dir) config.set_state_dir(*flags.state_dir);
  if (flags.worker) config.set_worker(*flags.worker);
  if (flags.nvml_library) config.set_nvml_library(*flags.nvml_library);
  if (flags.cpu_devices) config.set_cpu_devices(*flags.cpu_devices);
  if (flags.tls_cert) config.mutable_tls()->set_certificate(*flags.tls_cert);
  if (flags.tls_key) config.mutable_tls()->set_private_key(*flags.tls_key);
  if (flags.tls_client_ca) config.mutable_tls()->set_client_ca(*flags.tls_client_ca);
  if (flags.http_tls) config.mutable_tls()->set_http(true);
  if (flags.auth) config.mutable_auth()->set_tokens(true);
  if (flags.init_admin_token) config.mutable_auth()->set_init_admin_token(*flags.init_admin_token);
  if (flags.insecure) config.set_insecure(true);
  if (flags.no_tensorboard) config.set_tensorboard(false);
  if (!flags.data_roots.empty()) config.clear_data_roots();
  for (const std::string& root : flags.data_roots) config.add_data_roots(root);
  if (flags.log_format) AMPD_RETURN_IF_ERROR(SetLogFormat("--log-format", *flags.log_format, config));
  if (!flags.default_precision) return absl::OkStatus();
  return SetDefaultPrecision("--default-precision", *flags.default_precision, config);
}

void ApplyDefaultLimits(v1::ServerConfig::CallLimits& limits) {
  if (!limits.has_reads()) limits.set_reads(1000);
  if (!limits.has_writes()) limits.set_writes(1000);
  if (!limits.has_planning()) limits.set_planning(64);
  if (!limits.has_watchers()) limits.set_watchers(4000);
  if (!limits.has_transfers()) limits.set_transfers(64);
  if (!limits.has_request_bytes()) limits.set_request_bytes(int64_t{128} << 20);
  if (!limits.has_answer_bytes()) limits.set_answer_bytes(int64_t{96} << 20);
  if (!limits.has_connection_bytes()) limits.set_connection_bytes(int64_t{256} << 20);
}

void ApplyDefaults(const std::string& program_dir, v1::ServerConfig& config) {
  if (!config.has_listen()) config.set_listen("127.0.0.1:7070");
  if (!config.has_http()) config.set_http("127.0.0.1:7071");
  if (!config.has_state_dir()) config.set_state_dir("ampd-state");
  if (!config.has_insecure()) config.set_insecure(false);
  if (!config.auth().has_tokens()) config.mutable_auth()->set_tokens(false);
  // Without tokens everybody is an administrator.
  if (!config.auth().has_max_priority() && config.auth().tokens()) config.mutable_auth()->set_max_priority(0);
  if (!config.has_audit_log()) config.set_audit_log(absl::StrCat(config.state_dir(), "/audit.log"));
  if (!config.has_audit_log_bytes()) config.set_audit_log_bytes(int64_t{64} << 20);
  if (!config.has_tensorboard()) config.set_tensorboard(true);
  if (!config.has_nvml_library()) config.set_nvml_library("libnvidia-ml.so.1");
  if (!config.has_worker()) config.set_worker(absl::StrCat(program_dir, "/ampd-worker"));
  if (!config.has_reattach_timeout_seconds()) config.set_reattach_timeout_seconds(600);
  if (!config.has_heartbeat_timeout_seconds()) config.set_heartbeat_timeout_seconds(60);
  if (!config.has_drain_timeout_seconds()) config.set_drain_timeout_seconds(60);
  v1::ServerConfig::Retention& retention = *config.mutable_retention();
  if (!retention.has_step_reports()) retention.set_step_reports(10000);
  if (!config.has_min_free_bytes()) config.set_min_free_bytes(int64_t{256} << 20);
  if (!config.has_spot_notice_seconds()) config.set_spot_notice_seconds(30);
  if (!config.has_preemption_grace_seconds()) config.set_preemption_grace_seconds(60);
  if (!config.has_max_spec_bytes()) config.set_max_spec_bytes(1 << 20);
  if (!config.has_max_upload_bytes()) config.set_max_upload_bytes(int64_t{4} << 30);
  if (!config.has_max_uploads_bytes()) config.set_max_uploads_bytes(int64_t{64} << 30);
  if (config.log_format() == v1::ServerConfig::LOG_FORMAT_UNSPECIFIED) config.set_log_format(v1::ServerConfig::TEXT);
  if (!config.has_max_running_devices_per_user()) config.set_max_running_devices_per_user(0);
  if (!config.has_max_queued_jobs_per_user()) config.set_max_queued_jobs_per_user(0);
  if (!config.has_max_dataset_bytes_per_user()) config.set_max_dataset_bytes_per_user(0);
  if (!config.has_max_model_bytes_per_user()) config.set_max_model_bytes_per_user(0);
  if (!config.has_fair_share_half_life_seconds()) config.set_fair_share_half_life_seconds(7 * 24 * 3600);
  if (!config.has_preemption_min_run_seconds()) config.set_preemption_min_run_seconds(300);
  if (!config.has_max_jobs_per_shared_device()) config.set_max_jobs_per_shared_device(8);
  if (!config.has_max_sweep_bytes()) config.set_max_sweep_bytes(int64_t{64} << 20);
  if (!config.has_keepalive_seconds()) config.set_keepalive_seconds(60);
  if (!config.has_keepalive_timeout_seconds()) config.set_keepalive_timeout_seconds(20);
  ApplyDefaultLimits(*config.mutable_call_limits());
  if (config.default_precision_mode() == v1::PrecisionSpec::MODE_UNSPECIFIED) {
    config.set_default_precision_mode(v1::PrecisionSpec::FP32);
  }
}

// Unset, as far as the configuration goes: `AMPD_AUTH=${AMPD_AUTH:-}` is how files of orchestrators pass one on that
// nobody set. But for the library's name, where none is a choice.
Environment WithoutEmpty(const Environment& environment) {
  return [&environment](const std::string& name) {
    std::optional<std::string> value = environment(name);
    return value && value->empty() && name != "AMPD_NVML_LIBRARY" ? std::nullopt : value;
  };
}

// Where links lead, as far as the path is there.
std::string RealPath(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : real.string();
}

bool IsWithin(const std::string& path, const std::string& folder) {
  return path == folder || absl::StartsWith(path, folder == "/" ? folder : absl::StrCat(folder, "/"));
}

// Absolute and normal, without a '/' at the end.
std::string NormalPath(const std::string& path) {
  std::error_code error;
  std::string normal = fs::absolute(path, error).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

class Validation {
 public:
  explicit Validation(v1::ServerConfig& config) : config_(config) {}

  absl::Status Run(std::vector<std::string>& warnings) {
    CheckListen(warnings);
    CheckAccess();
    CheckHttp(warnings);
    CheckRange("cpu_devices", config_.cpu_devices(), 0, 1024);
    CheckRange("reattach_timeout_seconds", config_.reattach_timeout_seconds(), 1, kMaxSeconds);
    CheckRange("heartbeat_timeout_seconds", config_.heartbeat_timeout_seconds(), 1, kMaxSeconds);
    CheckRange("drain_timeout_seconds", config_.drain_timeout_seconds(), 1, kMaxSeconds);
    CheckRange("retention.step_reports", config_.retention().step_reports(), 0, kMaxBytes);
    CheckRange("retention.event_days", config_.retention().event_days(), 0, kMaxDays);
    CheckRange("retention.checkpoint_days", config_.retention().checkpoint_days(), 0, kMaxDays);
    CheckRange("retention.checkpoint_bytes", config_.retention().checkpoint_bytes(), 0, kMaxBytes);
    CheckRange("retention.upload_days", config_.retention().upload_days(), 0, kMaxDays);
    CheckRange("retention.file_days", config_.retention().file_days(), 0, kMaxDays);
    CheckRange("min_free_bytes", config_.min_free_bytes(), 0, kMaxBytes);
    CheckRange("spot_notice_seconds", config_.spot_notice_seconds(), 1, kMaxSeconds);
    CheckRange("preemption_grace_seconds", config_.preemption_grace_seconds(), 1, kMaxSeconds);
    if (!config_.spot_notice_url().empty()) {
      if (auto url = ParseHttpUrl(config_.spot_notice_url()); !url.ok())
        Wrong("spot_notice_url", url.status().message());
    }
    CheckRange("max_spec_bytes", config_.max_spec_bytes(), 1, 64 << 20);
    CheckRange("max_upload_bytes", config_.max_upload_bytes(), 1, kMaxBytes);
    CheckRange("max_uploads_bytes", config_.max_uploads_bytes(), 1, kMaxBytes);
    CheckRange("max_running_devices_per_user", config_.max_running_devices_per_user(), 0, INT32_MAX);
    CheckRange("max_queued_jobs_per_user", config_.max_queued_jobs_per_user(), 0, INT32_MAX);
    CheckRange("max_dataset_bytes_per_user", config_.max_dataset_bytes_per_user(), 0, kMaxBytes);
    CheckRange("max_model_bytes_per_user", config_.max_model_bytes_per_user(), 0, kMaxBytes);
    CheckRange("fair_share_half_life_seconds", config_.fair_share_half_life_seconds(), 60, kMaxSeconds);
    CheckRange("preemption_min_run_seconds", config_.preemption_min_run_seconds(), 0, kMaxSeconds);
    CheckRange("max_jobs_per_shared_device", config_.max_jobs_per_shared_device(), 1, 1024);
    CheckRange("max_sweep_bytes", config_.max_sweep_bytes(), 1, kMaxBytes);
    CheckRange("keepalive_seconds", config_.keepalive_seconds(), 1, 3600);
    CheckRange("keepalive_timeout_seconds", config_.keepalive_timeout_seconds(), 1, 600);
    CheckRange("call_limits.reads", config_.call_limits().reads(), 1, INT32_MAX);
    CheckRange("call_limits.writes", config_.call_limits().writes(), 1, INT32_MAX);
    CheckRange("call_limits.planning", config_.call_limits().planning(), 1, INT32_MAX);
    CheckRange("call_limits.watchers", config_.call_limits().watchers(), 1, INT32_MAX);
    CheckRange("call_limits.transfers", config_.call_limits().transfers(), 1, INT32_MAX);
    CheckRange("call_limits.request_bytes", config_.call_limits().request_bytes(), 40 << 20, kMaxBytes);
    CheckRange("call_limits.answer_bytes", config_.call_limits().answer_bytes(), 1 << 20, kMaxBytes);
    CheckRange("call_limits.connection_bytes", config_.call_limits().connection_bytes(), 16 << 20, kMaxBytes);
    if (config_.default_precision_mode() == v1::PrecisionSpec::AUTO) {
      Wrong("default_precision_mode", "AUTO is for jobs that ask for it: a default is a mode to train in");
    }
    if (const auto models = DeviceModelsWith(config_.device_models()); !models.ok()) {
      wrong_.push_back(std::string(models.status().message()));
    }
    CheckPaths();
    CheckWorkerUser();
    CheckDataRoots(warnings);
    if (wrong_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(wrong_, "\n"));
  }

 private:
  static constexpr int64_t kMaxSeconds = 366 * 24 * 3600;
  static constexpr int64_t kMaxDays = 36600;
  static constexpr int64_t kMaxBytes = int64_t{1} << 60;

  void Wrong(absl::string_view field, absl::string_view what) { wrong_.push_back(absl::StrCat(field, ": ", what)); }

  void CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) Wrong(field, absl::StrCat(value, " is not from ", low, " to ", high));
  }

  void CheckListen(std::vector<std::string>& warnings) {
    const absl::StatusOr<Address> listen = ParseAddress(config_.listen());
    if (!listen.ok()) return Wrong("listen", listen.status().message());
    const bool tokens = config_.auth().tokens();
    if (listen->IsLoopback() || (config_.has_tls() && tokens)) return;
    const absl::string_view lacks = config_.has_tls() ? "tokens" : tokens ? "TLS" : "TLS and tokens";
    if (config_.insecure()) {
      warnings.push_back(absl::StrCat(
          "gRPC is served on ", config_.listen(), " without ", lacks,
          " (insecure): ", tokens ? "anyone on the way reads the tokens" : "anyone who reaches it controls the jobs"));
      return;
    }
    Wrong("listen", absl::StrCat(config_.listen(), " is reachable from other machines, and there are no ", lacks,
                                 ": set tls.certificate, tls.private_key and auth.tokens (--tls-cert, --tls-key, "
                                 "--auth), listen on 127.0.0.1, or accept that with --insecure (insecure: true)"));
  }

  void CheckHttp(std::vector<std::string>& warnings) {
    const absl::StatusOr<Address> http = ParseAddress(config_.http());
    if (!http.ok()) return Wrong("http", http.status().message());
    if (http->IsLoopback()) return;
    const bool tokens = config_.auth().tokens(), tls = config_.tls().http();
    // Who is to show a certificate is no stranger.
    const bool certificates = tls && !config_.tls().client_ca().empty();
    if (config_.insecure() && !(tls && tokens)) {
      const char* const who = certificates ? "anyone with a certificate" : "anyone who reaches it";
      warnings.push_back(absl::StrCat(
          "the JSON API is served on ", config_.http(), " ", tls ? "without tokens" : "in plain text",
          " (insecure): ", tokens ? "anyone on the way reads the tokens" : absl::StrCat(who, " controls the jobs")));
    }
    // As CheckOrigin (server/web/access.h) has it.
    if (!config_.insecure() && !(tls && tokens)) {
      warnings.push_back(absl::StrCat("http: the JSON API and the web page refuse all requests on ", config_.http(),
                                      ", which is reachable from other machines, ",
                                      tls ? "without tokens" : "in plain text",
                                      ": they need tls.http and auth.tokens (--http-tls, --auth), http on 127.0.0.1, "
                                      "or --insecure (insecure: true)"));
    }
    if (!tokens || certificates) return;
    warnings.push_back(absl::StrCat("http: ", config_.http(), " is reachable from other machines, ",
                                    tls ? "" : "in plain text and ",
                                    "without tokens: anyone there reads users, jobs and their figures in /metrics"));
  }

  void CheckAccess() {
    const v1::ServerConfig::Tls& tls = config_.tls();
    const v1::ServerConfig::Auth& auth = config_.auth();
    if (config_.has_tls() && tls.certificate().empty()) Wrong("tls.certificate", "required for TLS");
    if (config_.has_tls() && tls.private_key().empty()) Wrong("tls.private_key", "required for TLS");
    if (!auth.init_admin_token().empty() && !auth.tokens()) Wrong("auth.init_admin_token", "needs auth.tokens");
    if (auth.certificate_role() != v1::ROLE_UNSPECIFIED) {
      if (!auth.tokens()) Wrong("auth.certificate_role", "needs auth.tokens");
      if (tls.client_ca().empty()) Wrong("auth.certificate_role", "needs tls.client_ca");
      if (auth.certificate_role() == v1::ADMIN) Wrong("auth.certificate_role", "administrators need tokens");
    }
    if (auth.has_max_priority() && !auth.tokens()) Wrong("auth.max_priority", "needs auth.tokens");
    CheckRange("auth.max_priority", auth.max_priority(), -1000, 1000);
    CheckRange("audit_log_bytes", config_.audit_log_bytes(), 1, kMaxBytes);
  }

  void CheckWorkerUser() {
    if (config_.worker_user().empty()) return;
    const absl::StatusOr<WorkerAccount> account = FindWorkerAccount(config_.worker_user());
    const absl::Status status = account.ok() ? CheckMayRunAsOthers() : account.status();
    if (!status.ok()) Wrong("worker_user", status.message());
  }

  void CheckPaths() {
    if (config_.state_dir().empty()) Wrong("state_dir", "is empty");
    config_.set_state_dir(NormalPath(config_.state_dir()));
    config_.set_worker(NormalPath(config_.worker()));
    if (access(config_.worker().c_str(), X_OK) != 0) {
      Wrong("worker", absl::StrCat("no program at ", config_.worker(), " (--worker PATH)"));
    }
    if (!config_.audit_log().empty()) config_.set_audit_log(NormalPath(config_.audit_log()));
    if (!config_.mirror_dir().empty()) config_.set_mirror_dir(NormalPath(config_.mirror_dir()));
    if (config_.mirror_dir() == config_.state_dir() + "/checkpoints") {
      Wrong("mirror_dir", absl::StrCat(config_.mirror_dir(), " is where the checkpoints themselves are"));
    }
    for (std::string& root : *config_.mutable_data_roots()) {
      root = NormalPath(root);
      std::error_code error;
      if (!fs::is_directory(root, error)) Wrong("data_roots", absl::StrCat("no folder at ", root));
    }
  }

  // What a data root holds, every user's jobs read.
  void CheckDataRoots(std::vector<std::string>& warnings) {
    for (const std::string& root : config_.data_roots()) {
      const std::string what = PrivateIn(RealPath(root));
      if (what.empty()) continue;
      const std::string text = absl::StrCat(root, " ", what);
      if (config_.auth().tokens()) {
        Wrong("data_roots", absl::StrCat(text, ", which is not every user's to read"));
      } else {
        warnings.push_back(absl::StrCat("data_roots: ", text, ": every job can read that"));
      }
    }
  }

  // What the daemon keeps for itself that `root` holds or lies in; empty: nothing.
  std::string PrivateIn(const std::string& root) const {
    const struct {
      absl::string_view field;
      const std::string& path;
    } kept[] = {{"state_dir", config_.state_dir()},
                {"mirror_dir", config_.mirror_dir()},
                {"audit_log", config_.audit_log()},
                {"tls.private_key", config_.tls().private_key()},
                {"auth.init_admin_token", config_.auth().init_admin_token()}};
    for (const auto& [field, path] : kept) {
      if (path.empty()) continue;
      const std::string real = RealPath(path);
      if (IsWithin(real, root)) return absl::StrCat("holds ", field, " (", path, ")");
      if (IsWithin(root, real)) return absl::StrCat("lies in ", field, " (", path, ")");
    }
    return "";
  }

  v1::ServerConfig& config_;
  std::vector<std::string> wrong_;
};

}  // namespace

absl::StatusOr<Configuration> LoadConfiguration(const std::vector<std::string>& arguments,
                                                const Environment& environment, const std::string& program_dir) {
  Flags flags;
  Configuration configuration;
  AMPD_ASSIGN_OR_RETURN(configuration.print, ParseFlags(arguments, flags));
  if (configuration.print) return configuration;
  AMPD_ASSIGN_OR_RETURN(configuration.config, ReadFile(flags.config_file));
  AMPD_RETURN_IF_ERROR(ApplyEnvironment(WithoutEmpty(environment), configuration.config));
  AMPD_RETURN_IF_ERROR(ApplyFlags(flags, configuration.config));
  ApplyDefaults(program_dir, configuration.config);
  AMPD_RETURN_IF_ERROR(Validation(configuration.config).Run(configuration.warnings));
  return configuration;
}

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace ampd
