#include "server/http/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Freer<SSL_free>>;

// OpenSSL's own BIO of a socket writes without MSG_NOSIGNAL.
int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int ReadSocket(BIO* bio, char* buffer, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(SocketOf(bio), buffer, static_cast<size_t>(size), 0);
  if (got < 0 && FailedIo(IoResult::State::kWantsRead).state != IoResult::State::kFailed) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

int WriteSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
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
  Tls(Session session, int socket) : session_(std::move(session)), socket_(socket) {}

  IoResult Read(char* buffer, size_t size) override {
    if (!is_begun_ && IsPlain()) return {IoResult::State::kPlain};
    ERR_clear_error();
    size_t got = 0;
    const int result = SSL_read_ex(session_.get(), buffer, size, &got);
    return result == 1 ? IoResult{IoResult::State::kDone, got} : Failure(result);
  }

  IoResult Write(absl::string_view bytes) override {
    ERR_clear_error();
    size_t sent = 0;
    const int result = SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &sent);
    return result == 1 ? IoResult{IoResult::State::kDone, sent} : Failure(result);
  }

  void SendEnd() override {
    ERR_clear_error();
    // Not allowed before the handshake is over, nor after an error.
    if (!has_failed_ && SSL_is_init_finished(session_.get()) == 1) SSL_shutdown(session_.get());
    shutdown(socket_, SHUT_WR);
  }

  bool is_tls() const override { return true; }
  bool has_certificate() const override {
    const Certificate shown(SSL_get1_peer_certificate(session_.get()));
    return shown != nullptr && SSL_get_verify_result(session_.get()) == X509_V_OK;
  }

 private:
  // A handshake's first byte is 22; a request's is a letter.
  bool IsPlain() {
    char first = 0;
    if (recv(socket_, &first, 1, MSG_PEEK) != 1) return false;
    is_begun_ = true;
    return absl::ascii_isalpha(static_cast<unsigned char>(first));
  }

  IoResult Failure(int result) {
    const int error = SSL_get_error(session_.get(), result);
    if (error == SSL_ERROR_WANT_READ) return {IoResult::State::kWantsRead};
    if (error == SSL_ERROR_WANT_WRITE) return {IoResult::State::kWantsWrite};
    if (error == SSL_ERROR_ZERO_RETURN) return {IoResult::State::kEnd};
    has_failed_ = true;
    return {IoResult::State::kFailed};
  }

  const Session session_;
  const int socket_;
  bool is_begun_ = false;
  bool has_failed_ = false;
};

// What OpenSSL says of the last failure.
absl::Status Refused(const char* what) {
  char reason[256] = "";
  ERR_error_string_n(ERR_peek_last_error(), reason, sizeof(reason));
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", reason));
}

Bio Open(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

absl::Status UseCertificate(SSL_CTX* context, const std::string& pem) {
  const Bio bio = Open(pem);
  const Certificate own(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return Refused("the certificate");
  while (true) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) return absl::OkStatus();
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return Refused("the certificate's chain");
  }
}

absl::Status UseKey(SSL_CTX* context, const std::string& pem) {
  const Bio bio = Open(pem);
  // Else OpenSSL asks the terminal.
  const auto no_phrase = [](char*, int, int, void*) { return -1; };
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_phrase, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) return Refused("the private key");
  return SSL_CTX_check_private_key(context) == 1 ? absl::OkStatus() : Refused("the private key");
}

absl::Status AskForCertificates(SSL_CTX* context, const std::string& pem) {
  const Bio bio = Open(pem);
  int count = 0;
  while (true) {
    const Certificate authority(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (authority == nullptr) break;
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return Refused("the clients' authorities");
    }
    ++count;
  }
  if (count == 0) return Refused("the clients' authorities");
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
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
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

std::unique_ptr<Transport> TlsContext::NewTransport(int socket) const {
  Session session(SSL_new(context_));
  BIO* const bio = session == nullptr ? nullptr : BIO_new(SocketMethod());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session.get(), bio, bio);
  SSL_set_accept_state(session.get());
  return std::make_unique<Tls>(std::move(session), socket);
}

}  // namespace ampd
