#include "client/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ampd::client {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxTokenBytes = 4096;

grpc::ChannelArguments ChannelOptions() {
  constexpr int kMaxMessageBytes = 64 << 20;
  grpc::ChannelArguments options;
  options.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A daemon is dialled where it is: a proxy for the web has no part in it.
  options.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A restarted daemon is found again within a second or two.
  options.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also the time one attempt may take: a busy machine needs a while to answer.
  options.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  options.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Notices a host that vanished; no more often than servers allow by default.
  options.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 320'000);
  return options;
}

bool IsAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return address.size() > 5;
  const size_t colon = address.rfind(':');
  int port;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
         port < 65536 && address.find('/') == std::string::npos;
}

// What is sent there does not leave this machine.
bool IsLocal(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  return absl::StartsWith(host, "127.") && std::count(host.begin(), host.end(), '.') == 3 &&
         host.find_first_not_of("0123456789.") == std::string::npos;
}

absl::StatusOr<std::string> ReadFile(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) return absl::InvalidArgumentError(absl::StrCat(option, ": cannot read ", path));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is empty"));
  if (text.size() > kMaxFileBytes) return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is too large"));
  return text;
}

absl::StatusOr<std::string> CheckToken(const std::string& source, const std::string& text) {
  std::string token(absl::StripAsciiWhitespace(text));
  const bool plain = std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (!token.empty() && plain && token.size() <= kMaxTokenBytes) return token;
  // Not what it is: it may be a secret after all.
  return absl::InvalidArgumentError(absl::StrCat(source, " holds no token"));
}

void WarnIfOpen(const Server& server, const std::string& file) {
  struct stat info {};
  if (!server.warn || stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & 077) == 0) return;
  server.warn(absl::StrCat("others may read the token in ", file, ": chmod 600 ", file));
}

// Empty: none.
absl::StatusOr<std::string> FindToken(const Server& server) {
  const bool other = server.token_file.empty() && (!server.token || server.token->empty());
  if (server.token_file.empty() && !other) return CheckToken(server.token_from, *server.token);
  const std::string file = other ? server.other_token_file.value_or("") : server.token_file;
  if (file.empty()) return std::string();
  const std::string source = other ? server.other_token_file_from : "--token-file";
  const absl::StatusOr<std::string> text = ReadFile(source, file);
  if (!text.ok()) return text;
  WarnIfOpen(server, file);
  return CheckToken(absl::StrCat(source, ": ", file), *text);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> FindCredentials(const Server& server) {
  if (server.certificate.empty() != server.private_key.empty()) {
    return absl::InvalidArgumentError("--cert and --key belong together");
  }
  if (!server.tls && server.ca.empty() && server.certificate.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  const struct {
    const char* option;
    const std::string& path;
    std::string* text;
  } files[] = {{"--ca", server.ca, &options.pem_root_certs},
               {"--cert", server.certificate, &options.pem_cert_chain},
               {"--key", server.private_key, &options.pem_private_key}};
  for (const auto& file : files) {
    if (file.path.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(file.option, file.path);
    if (!text.ok()) return text.status();
    if (!absl::StrContains(*text, "-----BEGIN ")) {
      return absl::InvalidArgumentError(absl::StrCat(file.option, ": ", file.path, " is no PEM file"));
    }
    *file.text = *std::move(text);
  }
  return grpc::SslCredentials(options);
}

// Shows the token with every call of a channel. gRPC's own credentials of calls are for channels with TLS alone.
class ShowToken : public Interceptor {
 public:
  explicit ShowToken(const std::string* authorization) : authorization_(authorization) {}
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", *authorization_});
    }
    methods->Proceed();
  }

 private:
  const std::string* const authorization_;
};

class ShowTokens : public ClientInterceptorFactoryInterface {
 public:
  explicit ShowTokens(const std::string& token) : authorization_(absl::StrCat("Bearer ", token)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new ShowToken(&authorization_); }

 private:
  const std::string authorization_;
};

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  if (IsAddress(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--server: expected HOST:PORT, got '", address, "'"));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Server& server) {
  if (!server.unknown.ok()) return server.unknown;
  if (absl::Status status = CheckAddress(server.address); !status.ok()) return status;
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = FindCredentials(server);
  if (!credentials.ok()) return credentials.status();
  const absl::StatusOr<std::string> token = FindToken(server);
  if (!token.ok()) return token.status();
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  if (!token->empty()) {
    const bool plain = !server.tls && server.ca.empty() && server.certificate.empty();
    if (plain && !IsLocal(server.address) && !server.insecure) {
      return absl::InvalidArgumentError(absl::StrCat("the token would go to ", server.address,
                                                     " in plain text: use --tls or --ca FILE (or --insecure)"));
    }
    interceptors.push_back(std::make_unique<ShowTokens>(*token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(server.address, *credentials, ChannelOptions(),
                                                                 std::move(interceptors));
}

}  // namespace ampd::client
