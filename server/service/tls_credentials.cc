#include "server/service/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <optional>
#include <string>

namespace ampd {
namespace {

// Called for every handshake. gRPC keeps what it had where it cannot use what it gets.
grpc_ssl_certificate_config_reload_status Fetch(void* files, grpc_ssl_server_certificate_config** config) {
  const std::optional<Certificates> fresh = static_cast<CertificateFiles*>(files)->TakeNew();
  if (!fresh) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {fresh->private_key.c_str(), fresh->certificate.c_str()};
  // gRPC insists on authorities; where clients are asked for no certificate they are for nobody.
  const std::string& authorities = fresh->client_ca.empty() ? fresh->certificate : fresh->client_ca;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// gRPC's C++ API has files that are read again, but nothing that keeps the old ones where the new are no good.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(grpc_server_credentials* credentials) : credentials_(credentials) {}
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> TlsCredentials(CertificateFiles* files, bool client_certificates) {
  grpc_server_credentials* credentials =
      grpc_ssl_server_credentials_create_with_options(grpc_ssl_server_credentials_create_options_using_config_fetcher(
          client_certificates ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                              : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
          &Fetch, files));
  return credentials == nullptr ? nullptr : std::make_shared<ReloadingCredentials>(credentials);
}

}  // namespace ampd
