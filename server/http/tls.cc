#include "server/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"
#include "server/files/openssl_handles.h"

namespace ampd {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Freer;
using openssl::Key;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Freer<SSL_free>>;

// What a read takes from the network, whatever it makes of it: OpenSSL goes on by itself while records come that hold
// no data (new keys, a handshake that it refuses), and the thread has other connections.
constexpr size_t kBytesARead = 18 << 10;

struct Network {
  int socket = -1;
  size_t bytes_left = 0;
};

Network& NetworkOf(BIO* bio) { return *static_cast<Network*>(BIO_get_data(bio)); }

int ReadSocket(BIO* bio, char* buffer, int size) {
  BIO_clear_retry_flags(bio);
  Network& network = NetworkOf(bio);
  if (network.bytes_left == 0) {
    // What is there stays in the socket, and epoll tells of it again.
    BIO_set_retry_read(bio);
    return -1;
  }
  const ssize_t got = recv(network.socket, buffer, std::min(static_cast<size_t>(size), network.bytes_left), 0);
  if (got > 0) network.bytes_left -= static_cast<size_t>(got);
  if (got < 0 && FailedIo(IoResult::State::kWantsRead).state != IoResult::State::kFailed) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

// OpenSSL's own BIO of a socket writes without MSG_NOSIGNAL.
int WriteSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(NetworkOf(bio).socket, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && FailedIo(IoResult::State::kWantsWrite).state != IoResult::State::kFailed) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

// Every write has gone to the socket when it returns.
long ControlSocket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// For the life of the process.
BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    BIO_meth_set_read(made, &ReadSocket);
    BIO_meth_set_write(made, &WriteSocket);
    BIO_meth_set_ctrl(made, &ControlSocket);
    return made;
  }();
  return method;
}

class Tls final : public Transport {
 public:
  // Null: no memory.
  static std::unique_ptr<Transport> Create(SSL_CTX* context, int socket) {
    Session session(SSL_new(context));
    BIO* const bio = session == nullptr ? nullptr : BIO_new(SocketMethod());
    if (bio == nullptr) return nullptr;
    std::unique_ptr<Tls> tls(new Tls(std::move(session), socket));
    BIO_set_data(bio, &tls->network_);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->session_.get(), bio, bio);
    SSL_set_accept_state(tls->session_.get());
    return tls;
  }

  IoResult Read(char* buffer, size_t size) override {
    if (!is_begun_) {
      const IoResult::State first = LookAtFirst();
      if (first != IoResult::State::kDone) return {first};
    }
    network_.bytes_left = kBytesARead;
    ERR_clear_error();
    size_t got = 0;
    const int result = SSL_read_ex(session_.get(), buffer, size, &got);
    return result == 1 ? IoResult{IoResult::State::kDone, got} : Failure(result);
  }

  IoResult Write(absl::string_view bytes) override {
    network_.bytes_left = kBytesARead;
    ERR_clear_error();
    size_t sent = 0;
    const int result = SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &sent);
    return result == 1 ? IoResult{IoResult::State::kDone, sent} : Failure(result);
  }

  IoResult SendEnd() override {
    ERR_clear_error();
    // Not allowed before the handshake is over, nor after an error.
    if (!has_failed_ && SSL_is_init_finished(session_.get()) == 1) {
      const int result = SSL_shutdown(session_.get());
      if (result < 0 && Failure(result).state == IoResult::State::kWantsWrite) return {IoResult::State::kWantsWrite};
    }
    shutdown(network_.socket, SHUT_WR);
    return {IoResult::State::kDone};
  }

  bool is_in_handshake() const override { return SSL_is_init_finished(session_.get()) == 0; }
  bool is_tls() const override { return true; }
  bool has_certificate() const override {
    const Certificate shown(SSL_get1_peer_certificate(session_.get()));
    return shown != nullptr && SSL_get_verify_result(session_.get()) == X509_V_OK;
  }

 private:
  Tls(Session session, int socket) : session_(std::move(session)) { network_.socket = socket; }

  // A handshake's first byte is 22; a request's is a letter.
  IoResult::State LookAtFirst() {
    char first = 0;
    const ssize_t got = recv(network_.socket, &first, 1, MSG_PEEK);
    if (got < 0) return FailedIo(IoResult::State::kWantsRead).state;
    if (got == 0) return IoResult::State::kEnd;
    is_begun_ = true;
    const bool is_letter = absl::ascii_isalpha(static_cast<unsigned char>(first));
    return is_letter ? IoResult::State::kPlain : IoResult::State::kDone;
  }

  IoResult Failure(int result) {
    const int error = SSL_get_error(session_.get(), result);
    if (error == SSL_ERROR_WANT_READ) return {IoResult::State::kWantsRead};
    if (error == SSL_ERROR_WANT_WRITE) return {IoResult::State::kWantsWrite};
    if (error == SSL_ERROR_ZERO_RETURN) return {IoResult::State::kEnd};
    has_failed_ = true;
    return {IoResult::State::kFailed};
  }

  // The session's BIO refers to it.
  Network network_;
  const Session session_;
  bool is_begun_ = false;
  bool has_failed_ = false;
};

// What OpenSSL says of the last failure.
absl::Status Refused(const char* what) {
  char reason[256] = "";
  ERR_error_string_n(ERR_peek_last_error(), reason, sizeof(reason));
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", reason));
}

// All of a text, one at least.
absl::StatusOr<std::vector<Certificate>> CertificatesIn(const std::string& pem, const char* what) {
  const Bio bio = openssl::Open(pem);
  std::vector<Certificate> certificates;
  while (Certificate next = openssl::NextCertificate(bio.get())) certificates.push_back(std::move(next));
  // Anything else is a certificate that is damaged, or half written.
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!is_end || certificates.empty()) return Refused(what);
  ERR_clear_error();
  return certificates;
}

absl::Status UseCertificate(SSL_CTX* context, const std::string& pem) {
  constexpr char kWhat[] = "the certificate, or one of its chain";
  AMPD_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, CertificatesIn(pem, kWhat));
  if (SSL_CTX_use_certificate(context, chain[0].get()) != 1) return Refused(kWhat);
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return Refused(kWhat);
  }
  return absl::OkStatus();
}

absl::Status UseKey(SSL_CTX* context, const std::string& pem) {
  const Key key = openssl::NextKey(openssl::Open(pem).get());
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) return Refused("the private key");
  return SSL_CTX_check_private_key(context) == 1 ? absl::OkStatus() : Refused("the private key");
}

// HTTP/1.1 alone: who wants another protocol of the same certificate (gRPC's port has it) is at the wrong port.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered,
                   unsigned int offered_size, void*) {
  constexpr absl::string_view kHttp = "http/1.1";
  for (unsigned int at = 0; at < offered_size; at += 1 + offered[at]) {
    const absl::string_view name(reinterpret_cast<const char*>(offered) + at + 1, offered[at]);
    if (name != kHttp) continue;
    *chosen = offered + at + 1;
    *chosen_size = kHttp.size();
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

absl::Status AskForCertificates(SSL_CTX* context, const std::string& pem) {
  constexpr char kWhat[] = "the clients' authorities";
  AMPD_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities, CertificatesIn(pem, kWhat));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const Certificate& authority : authorities) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 || SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return Refused(kWhat);
    }
  }
  // As gRPC: one that is no root may be all that is trusted.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // A session that is taken up again would not look at the certificate again.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Create(const std::string& certificate,
                                                                     const std::string& private_key,
                                                                     const std::string& client_ca) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return Refused("TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Of TLS 1.2 what has forward secrecy and authenticates what it encrypts; TLS 1.3 has nothing else.
  if (SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20") != 1) return Refused("TLS");
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_alpn_select_cb(context.get(), &ChooseProtocol, nullptr);
  // A record without data ends a read.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // A connection is one request: browsers take up their session again, by tickets, without another signature.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  constexpr unsigned char kPort[] = "ampd http";
  SSL_CTX_set_session_id_context(context.get(), kPort, sizeof(kPort) - 1);
  AMPD_RETURN_IF_ERROR(UseCertificate(context.get(), certificate));
  AMPD_RETURN_IF_ERROR(UseKey(context.get(), private_key));
  if (!client_ca.empty()) AMPD_RETURN_IF_ERROR(AskForCertificates(context.get(), client_ca));
  return std::shared_ptr<const TlsContext>(new TlsContext(context.release()));
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<Transport> TlsContext::NewTransport(int socket) const { return Tls::Create(context_, socket); }

}  // namespace ampd
