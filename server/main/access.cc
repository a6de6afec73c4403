#include "server/main/access.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/main/log.h"
#include "server/service/tls_credentials.h"

namespace ampd {
namespace {

absl::StatusOr<std::shared_ptr<const TlsContext>> ContextOf(const Certificates& files) {
  absl::StatusOr<std::shared_ptr<const TlsContext>> context =
      TlsContext::Create(files.certificate, files.private_key, files.client_ca);
  if (context.ok()) return context;
  return absl::InvalidArgumentError(absl::StrCat("http: ", context.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const v1::ServerConfig& config, Store* store) {
  std::unique_ptr<Access> access(new Access());
  if (config.has_tls()) AMPD_RETURN_IF_ERROR(access->OpenTls(config.tls()));
  if (!config.audit_log().empty()) {
    AuditLog::Options audit;
    audit.path = config.audit_log();
    audit.max_bytes = config.audit_log_bytes();
    audit.log = [](const std::string& text) { Log(Severity::kWarning, text); };
    AMPD_ASSIGN_OR_RETURN(access->audit_, AuditLog::Open(std::move(audit)));
  }
  if (config.auth().tokens()) AMPD_RETURN_IF_ERROR(access->OpenTokens(config, store));
  CallGate::Options gate;
  gate.tokens = access->tokens_.get();
  gate.certificate_role = config.auth().certificate_role();
  gate.audit = access->audit_.get();
  access->gate_ = std::make_unique<CallGate>(gate);
  if (access->tokens_ != nullptr) {
    access->tokens_->SetRevokeListener([gate = access->gate_.get()](const std::string& id) { gate->EndCalls(id); });
  }
  return access;
}

absl::Status Access::OpenTls(const v1::ServerConfig::Tls& tls) {
  const CertificatePaths paths = {tls.certificate(), tls.private_key(), tls.client_ca()};
  AMPD_ASSIGN_OR_RETURN(certificates_, CertificateFiles::Open(paths, [](const std::string& text, bool warning) {
                          Log(warning ? Severity::kWarning : Severity::kInfo, text);
                        }));
  client_certificates_ = !tls.client_ca().empty();
  if (!tls.http()) return absl::OkStatus();
  // What is wrong with the files has been said; it is said again where this port comes across it.
  AMPD_ASSIGN_OR_RETURN(http_certificates_, CertificateFiles::Open(paths, [](const std::string& text, bool warning) {
                          if (warning) Log(Severity::kWarning, absl::StrCat("http: ", text));
                        }));
  AMPD_ASSIGN_OR_RETURN(http_tls_, ContextOf(*http_certificates_->TakeNew()));
  return absl::OkStatus();
}

std::function<std::shared_ptr<const TlsContext>()> Access::HttpTls() {
  if (http_tls_ == nullptr) return nullptr;
  return [this] {
    const std::optional<Certificates> fresh = http_certificates_->TakeNew();
    if (!fresh) return http_tls_;
    absl::StatusOr<std::shared_ptr<const TlsContext>> context = ContextOf(*fresh);
    if (context.ok()) {
      http_tls_ = *std::move(context);
    } else {
      Log(Severity::kWarning, absl::StrCat("TLS: the files changed and cannot be used, those of before stay in use: ",
                                           context.status().message()));
    }
    return http_tls_;
  };
}

absl::Status Access::OpenTokens(const v1::ServerConfig& config, Store* store) {
  AMPD_ASSIGN_OR_RETURN(tokens_, TokenBook::Open(store, &SystemClock()));
  const std::string& file = config.auth().init_admin_token();
  if (!file.empty()) {
    AMPD_ASSIGN_OR_RETURN(const bool made, tokens_->InitAdmin(file));
    if (made) Log(Severity::kInfo, absl::StrCat("the secret of a new ADMIN token, of user admin, is in ", file));
  }
  if (!tokens_->HasAdmin()) {
    Log(Severity::kWarning,
        "no ADMIN token holds, so that nobody can make tokens: --init-admin-token FILE makes one at the start");
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Access::Credentials() const {
  if (certificates_ == nullptr) return grpc::InsecureServerCredentials();
  return TlsCredentials(certificates_.get(), client_certificates_);
}

}  // namespace ampd
