// Who gets in, as the configuration has it: TLS of both ports, tokens and the audit log put together.
#ifndef AMPD_SERVER_MAIN_ACCESS_H_
#define AMPD_SERVER_MAIN_ACCESS_H_

#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/config.pb.h"
#include "server/auth/audit_log.h"
#include "server/auth/certificates.h"
#include "server/auth/tokens.h"
#include "server/http/tls.h"
#include "server/service/call_gate.h"
#include "server/store/store.h"

namespace ampd {

// Outlives the server that uses it.
class Access {
 public:
  // `config` as LoadConfiguration gives it; `store` outlives this. The first administrator's token is made where that
  // is asked for. Errors that name the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const v1::ServerConfig& config, Store* store);

  // Of the port; plain text without `tls`.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  // Of the HTTP port (HttpServer::Options::tls), for one thread at a time; empty: plain text. Outlived by this.
  std::function<std::shared_ptr<const TlsContext>()> HttpTls();
  CallGate* gate() const { return gate_.get(); }
  // Null where none is kept.
  AuditLog* audit() const { return audit_.get(); }
  // Null where none are asked for.
  TokenBook* tokens() const { return tokens_.get(); }

 private:
  Access() = default;
  absl::Status OpenTls(const v1::ServerConfig::Tls& tls);
  absl::Status OpenTokens(const v1::ServerConfig& config, Store* store);

  bool client_certificates_ = false;
  // The gate uses both before it.
  std::unique_ptr<CertificateFiles> certificates_;
  // The same files, as the HTTP port has seen them, and what it made of them; null: plain text.
  std::unique_ptr<CertificateFiles> http_certificates_;
  std::shared_ptr<const TlsContext> http_tls_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<CallGate> gate_;
  // Tells the gate whose token was revoked, and is used by it: the gate sees no call once the server is gone.
  std::unique_ptr<TokenBook> tokens_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_ACCESS_H_
