// TLS of a gRPC server whose certificate may change while it serves.
#ifndef AMPD_SERVER_SERVICE_TLS_CREDENTIALS_H_
#define AMPD_SERVER_SERVICE_TLS_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/auth/certificates.h"

namespace ampd {

// TLS 1.2 or 1.3. Every handshake takes what `files`, which outlives the server, has at that time; connections that
// stand go on with what they began with. With `client_certificates` a client must show a certificate of the files'
// authorities. Null where the first files cannot be used. For one port.
std::shared_ptr<grpc::ServerCredentials> TlsCredentials(CertificateFiles* files, bool client_certificates);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_TLS_CREDENTIALS_H_
