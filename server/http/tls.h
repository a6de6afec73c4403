// TLS 1.2 and 1.3 of the HTTP port, by OpenSSL.
#ifndef AMPD_SERVER_HTTP_TLS_H_
#define AMPD_SERVER_HTTP_TLS_H_

#include <openssl/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/transport.h"

namespace ampd {

// A server's certificate and what goes with it. Immutable; thread-safe. Sessions outlive it.
class TlsContext {
 public:
  // PEM texts: the certificate and those between it and a root; its key, without a pass phrase; authorities. With
  // `client_ca` a client is asked for a certificate: one that does not hold ends the handshake, none does not
  // (Transport::has_certificate). INVALID_ARGUMENT for what OpenSSL does not take, with its reason.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Create(const std::string& certificate,
                                                                  const std::string& private_key,
                                                                  const std::string& client_ca);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The server's side of a connection; the first reads are the handshake. Null: no memory.
  std::unique_ptr<Transport> NewTransport(int socket) const;

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  SSL_CTX* const context_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_TLS_H_
