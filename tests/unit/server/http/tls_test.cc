// The HTTP port by TLS, asked by OpenSSL's client.
#include "server/http/tls.h"

#include <gmock/gmock.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "server/http/http_server.h"
#include "tests/unit/server/auth/certificate_pair.h"
#include "tests/unit/server/http/raw_client.h"

namespace ampd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::hours kHour{1};
constexpr size_t kLarge = 16 << 20;
constexpr size_t kPart = 100'000;
constexpr char kHealth[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

BIO* Text(const std::string& pem) { return BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())); }

// The client's side of TLS over a plain socket, which blocks. It trusts the certificate `server` alone.
class TlsClient {
 public:
  TlsClient(const std::string& address, const Pair& server, const Pair* own = nullptr, int version = 0,
            SSL_SESSION* before = nullptr)
      : client_(address) {
    context_ = SSL_CTX_new(TLS_client_method());
    if (version != 0) SSL_CTX_set_max_proto_version(context_, version);
    if (version == TLS1_1_VERSION) SSL_CTX_set_security_level(context_, 0);
    BIO* const trusted = Text(server.certificate);
    X509* const authority = PEM_read_bio_X509(trusted, nullptr, nullptr, nullptr);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), authority);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    X509_free(authority);
    BIO_free(trusted);
    if (own != nullptr) Show(*own);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, client_.socket());
    if (before != nullptr) SSL_set_session(ssl_, before);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  SSL* ssl() { return ssl_; }
  bool Send(absl::string_view text) { return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) > 0; }
  // To the end; `whole` says whether TLS told of it.
  std::string Read() {
    std::string answer;
    char buffer[4096];
    int got = 0;
    while ((got = SSL_read(ssl_, buffer, sizeof(buffer))) > 0) answer.append(buffer, static_cast<size_t>(got));
    whole_ = SSL_get_error(ssl_, got) == SSL_ERROR_ZERO_RETURN;
    return answer;
  }
  bool whole() const { return whole_; }
  std::string Ask(absl::string_view request) { return connected_ && Send(request) ? Read() : ""; }
  Client& raw() { return client_; }

 private:
  void Show(const Pair& own) {
    BIO* const certificate = Text(own.certificate);
    BIO* const key = Text(own.key);
    X509* const shown = PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
    EVP_PKEY* const secret = PEM_read_bio_PrivateKey(key, nullptr, nullptr, nullptr);
    EXPECT_EQ(SSL_CTX_use_certificate(context_, shown), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, secret), 1);
    X509_free(shown);
    EVP_PKEY_free(secret);
    BIO_free(certificate);
    BIO_free(key);
  }

  Client client_;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  bool whole_ = false;
};

class TlsTest : public ::testing::Test {
 protected:
  void Start(const Pair* authority = nullptr, std::chrono::milliseconds request_time = kHour) {
    Use(server_pair_, authority);
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.threads = 2;
    options.max_connections = 16;
    options.request_time = request_time;
    options.client_certificates = authority != nullptr;
    options.tls = [this] {
      const MutexLock lock(&mutex_);
      return context_;
    };
    options.router.Add("GET", "/large", [](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Send({200, "text/plain", {}, std::string(kLarge, 'x')});
    });
    options.router.Add("GET", "/parts", [](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Begin({}, std::nullopt);
      for (char c = 'a'; c <= 'z'; ++c) exchange.Write(std::string(kPart, c));
    });
    options.router.Add("POST", "/body", [](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Send({200, "", {}, exchange.ReadBody(kMaxBodyBytes).value_or("none")});
    });
    options.router.Add("GET", "/who", [](HttpExchange& exchange, const Router::Arguments&) {
      const HttpRequest& request = exchange.request();
      exchange.Send({200, "", {}, absl::StrCat("tls ", request.is_tls, " certificate ", request.has_certificate)});
    });
    // OpenSSL's own sockets raise it where the server has gone; its threads have none of that.
    MaskPipeSignal(SIG_UNBLOCK);
    http_ = *HttpServer::Start(std::move(options));
    MaskPipeSignal(SIG_BLOCK);
  }
  static void MaskPipeSignal(int how) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(how, &pipe, nullptr);
  }
  void Use(const Pair& pair, const Pair* authority = nullptr) {
    auto context = TlsContext::Create(pair.certificate, pair.key, authority == nullptr ? "" : authority->certificate);
    ASSERT_TRUE(context.ok()) << context.status();
    const MutexLock lock(&mutex_);
    context_ = *std::move(context);
  }
  const std::string& address() const { return http_->address(); }
  std::string Ask(absl::string_view request, const Pair* own = nullptr) {
    return TlsClient(address(), server_pair_, own).Ask(request);
  }
  void ExpectAnswers() { EXPECT_THAT(Ask(kHealth), EndsWith("ok\n")); }

  const Pair server_pair_ = MakePair(3600);
  Mutex mutex_;
  std::shared_ptr<const TlsContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> http_;
};

TEST_F(TlsTest, AnswersAndTellsOfTheEnd) {
  Start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(address(), server_pair_, nullptr, version);
    EXPECT_THAT(client.Ask(kHealth), EndsWith("ok\n"));
    EXPECT_TRUE(client.whole());
    EXPECT_EQ(SSL_version(client.ssl()), version);
  }
  EXPECT_FALSE(TlsClient(address(), server_pair_, nullptr, TLS1_1_VERSION).connected());
  EXPECT_FALSE(TlsClient(address(), MakePair(3600)).connected()) << "another server's certificate";
  EXPECT_THAT(Ask("GET /who HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("tls 1 certificate 0"));
}

TEST_F(TlsTest, BytesArriveAsTheyWereSentBothWays) {
  Start();
  TlsClient large(address(), server_pair_);
  EXPECT_THAT(large.Ask("GET /large HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("\r\n\r\n" + std::string(kLarge, 'x')));
  EXPECT_TRUE(large.whole());
  std::string parts;
  for (char c = 'a'; c <= 'z'; ++c) parts += std::string(kPart, c);
  EXPECT_THAT(Ask("GET /parts HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("\r\n\r\n" + parts));
  // Of several records, of which the first end anywhere.
  const std::string body(60'000, 'y');
  TlsClient slow(address(), server_pair_);
  for (const char c : absl::StrCat("POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n")) {
    slow.Send(std::string(1, c));
  }
  EXPECT_THAT(slow.Ask(body), EndsWith("\r\n\r\n" + body));
  TlsClient expecting(address(), server_pair_);
  expecting.Send("POST /body HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_THAT(expecting.Ask("abc"), StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"));
}

TEST_F(TlsTest, PlainTextIsToldWhatToDo) {
  Start();
  const std::string answer = Get(address(), "/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer, HasSubstr("https://"));
  // What is neither.
  EXPECT_THAT(Exchange(address(), std::string("\x16\x03\x01\xff\xff garbage", 14)), Not(HasSubstr("HTTP")));
  EXPECT_THAT(Exchange(address(), std::string(1000, '\x80')), Not(HasSubstr("HTTP")));
  ExpectAnswers();
}

TEST_F(TlsTest, HandshakesThatDoNotComeKeepNobodyOut) {
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<Client>(address()));
    // Nothing, and the begin of a handshake.
    if (i % 2 == 0) clients.back()->Send(std::string("\x16\x03\x01\x01\x00\x01", 6));
    if (i % 20 == 0) ExpectAnswers();
  }
  ExpectAnswers();
}

TEST_F(TlsTest, AHandshakeIsThereInTimeOrTheConnectionEnds) {
  Start(nullptr, std::chrono::milliseconds(300));
  Client client(address());
  client.Send(std::string("\x16\x03\x01\x01\x00\x01", 6));
  EXPECT_EQ(client.Read(), "");
}

TEST_F(TlsTest, AClientThatLeavesAmidAnAnswerHarmsNobody) {
  Start();
  for (const char* path : {"/large", "/parts"}) {
    TlsClient client(address(), server_pair_);
    client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_TRUE(client.raw().IsReadable(60'000));
  }
  ExpectAnswers();
}

TEST_F(TlsTest, TheNextConnectionUsesTheNewCertificate) {
  Start();
  TlsClient before(address(), server_pair_);
  const Pair renewed = MakePair(7200);
  Use(renewed);
  EXPECT_THAT(TlsClient(address(), renewed).Ask(kHealth), EndsWith("ok\n"));
  EXPECT_FALSE(TlsClient(address(), server_pair_).connected());
  EXPECT_THAT(before.Ask(kHealth), EndsWith("ok\n")) << "one that stands goes on";
}

// Whether a second connection takes up the session of a first.
bool TakesUp(const std::string& address, const Pair& server, const Pair* own) {
  TlsClient first(address, server, own);
  EXPECT_THAT(first.Ask(kHealth), EndsWith("ok\n"));
  SSL_SESSION* const session = SSL_get1_session(first.ssl());
  TlsClient second(address, server, own, 0, session);
  SSL_SESSION_free(session);
  EXPECT_THAT(second.Ask(kHealth), EndsWith("ok\n"));
  return SSL_session_reused(second.ssl()) == 1;
}

TEST_F(TlsTest, ASessionIsTakenUpAgainUnlessACertificateWasShown) {
  Start();
  EXPECT_TRUE(TakesUp(address(), server_pair_, nullptr));
  http_.reset();
  const Pair own = MakePair(3600);
  Start(&own);
  EXPECT_FALSE(TakesUp(address(), server_pair_, &own));
}

TEST_F(TlsTest, WithoutACertificateOnlyHealthIsThere) {
  const Pair own = MakePair(3600), stranger = MakePair(3600), expired = MakePair(-60);
  Start(&own);
  for (const char* path : {"/metrics", "/who", "/", "/healthz/", "/nothing"}) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(Ask(request), StartsWith("HTTP/1.1 403 ")) << path;
    EXPECT_THAT(Ask(request, &own), Not(StartsWith("HTTP/1.1 403 "))) << path;
  }
  EXPECT_THAT(Ask("GET /who HTTP/1.1\r\nHost: x\r\n\r\n", &own), EndsWith("tls 1 certificate 1"));
  ExpectAnswers();
  EXPECT_THAT(Ask("GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("ok\n"));
  // Of TLS 1.3 the client is done before the server has looked.
  EXPECT_EQ(Ask(kHealth, &stranger), "");
  Start(&expired);
  EXPECT_EQ(Ask(kHealth, &expired), "");
}

// Both ends of a connection, in one thread.
class TlsTransportTest : public ::testing::Test {
 protected:
  void Connect(const char* protocols = nullptr) {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets_), 0);
    server_ = (*TlsContext::Create(pair_.certificate, pair_.key, ""))->NewTransport(sockets_[0]);
    context_ = SSL_CTX_new(TLS_client_method());
    client_ = SSL_new(context_);
    SSL_set_fd(client_, sockets_[1]);
    if (protocols != nullptr) {
      SSL_set_alpn_protos(client_, reinterpret_cast<const unsigned char*>(protocols),
                          static_cast<unsigned int>(strlen(protocols)));
    }
    for (int i = 0; i < 20 && SSL_connect(client_) != 1; ++i) state_ = Read();
    for (int i = 0; i < 20 && Waiting() > 0; ++i) state_ = Read();
  }
  ~TlsTransportTest() override {
    SSL_free(client_);
    SSL_CTX_free(context_);
    server_.reset();
    close(sockets_[0]);
    close(sockets_[1]);
  }
  IoResult::State Read() {
    char buffer[16 << 10];
    const IoResult result = server_->Read(buffer, sizeof(buffer));
    read_.append(buffer, result.bytes);
    return result.state;
  }
  // Bytes that came and were not taken.
  int Waiting() {
    int bytes = 0;
    EXPECT_EQ(ioctl(sockets_[0], FIONREAD, &bytes), 0);
    return bytes;
  }

  const Pair pair_ = MakePair(3600);
  int sockets_[2] = {-1, -1};
  SSL_CTX* context_ = nullptr;
  SSL* client_ = nullptr;
  std::unique_ptr<Transport> server_;
  IoResult::State state_ = IoResult::State::kDone;
  std::string read_;
};

TEST_F(TlsTransportTest, RecordsWithoutDataDoNotKeepTheThread) {
  Connect();
  ASSERT_EQ(SSL_is_init_finished(client_), 1);
  for (int i = 0; i < 100; ++i) {
    SSL_key_update(client_, SSL_KEY_UPDATE_NOT_REQUESTED);
    ASSERT_EQ(SSL_do_handshake(client_), 1);
  }
  ASSERT_EQ(SSL_write(client_, "data", 4), 4);
  int reads = 0;
  while (read_.empty() && reads < 1000) {
    const IoResult::State state = Read();
    ASSERT_TRUE(state == IoResult::State::kWantsRead || state == IoResult::State::kDone);
    ++reads;
  }
  EXPECT_EQ(read_, "data");
  EXPECT_GT(reads, 80);
}

TEST_F(TlsTransportTest, SpeaksHttpAlone) {
  Connect("\x02h2\x08http/1.1");
  const unsigned char* chosen = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(client_, &chosen, &size);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(chosen), size), "http/1.1");
}

TEST_F(TlsTransportTest, RefusesWhoWantsAnotherProtocol) {
  Connect("\x02h2\x04smtp");
  EXPECT_EQ(state_, IoResult::State::kFailed);
}

TEST_F(TlsTransportTest, TheEndIsToldBehindAllThatWasWritten) {
  Connect();
  const std::string bytes(4096, 'x');
  size_t sent = 0;
  IoResult written{IoResult::State::kDone, 0};
  // Until there is no room; a record that went in part is to be written again.
  while (written.state == IoResult::State::kDone) {
    written = server_->Write(bytes);
    sent += written.bytes;
  }
  ASSERT_EQ(written.state, IoResult::State::kWantsWrite);
  std::string got;
  char buffer[4096];
  bool is_ended = false;
  for (int i = 0; i < 10'000 && !(SSL_get_shutdown(client_) & SSL_RECEIVED_SHUTDOWN); ++i) {
    if (written.state != IoResult::State::kDone) {
      written = server_->Write(bytes);
      sent += written.bytes;
    }
    if (written.state == IoResult::State::kDone && !is_ended) {
      is_ended = server_->SendEnd().state == IoResult::State::kDone;
    }
    const int result = SSL_read(client_, buffer, sizeof(buffer));
    if (result > 0) got.append(buffer, static_cast<size_t>(result));
  }
  EXPECT_TRUE(SSL_get_shutdown(client_) & SSL_RECEIVED_SHUTDOWN);
  EXPECT_EQ(got.size(), sent);
}

TEST(TlsContextTest, SaysWhatItDoesNotTake) {
  const Pair pair = MakePair(3600), other = MakePair(3600);
  const auto refusal = [](const std::string& certificate, const std::string& key, const std::string& authorities) {
    return std::string(TlsContext::Create(certificate, key, authorities).status().message());
  };
  const std::string damaged = pair.certificate + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  EXPECT_THAT(refusal(damaged, pair.key, ""), HasSubstr("the certificate"));
  EXPECT_THAT(refusal(pair.certificate, pair.key, damaged), HasSubstr("the clients' authorities"));
  EXPECT_EQ(refusal(pair.certificate + other.certificate, pair.key, pair.certificate + other.certificate), "");
  EXPECT_THAT(refusal("", pair.key, ""), HasSubstr("the certificate"));
  EXPECT_THAT(refusal(pair.certificate, other.key, ""), HasSubstr("the private key"));
  EXPECT_THAT(refusal(pair.certificate, MakePair(3600, "phrase").key, ""), HasSubstr("the private key"));
  EXPECT_THAT(refusal(pair.certificate, pair.key, "hello"), HasSubstr("the clients' authorities"));
}

}  // namespace
}  // namespace ampd
