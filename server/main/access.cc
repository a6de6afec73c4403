#include "server/main/access.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/main/log.h"
#include "server/service/tls_credentials.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const v1::ServerConfig& config, Store* store) {
  std::unique_ptr<Access> access(new Access());
  if (config.has_tls()) {
    AMPD_ASSIGN_OR_RETURN(
        access->certificates_,
        CertificateFiles::Open(
            {config.tls().certificate(), config.tls().private_key(), config.tls().client_ca()},
            [](const std::string& text, bool warning) { Log(warning ? Severity::kWarning : Severity::kInfo, text); }));
    access->client_certificates_ = !config.tls().client_ca().empty();
  }
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
