// Which daemon ampctl talks to, and how it shows who it is.
#ifndef AMPD_CLIENT_SERVER_H_
#define AMPD_CLIENT_SERVER_H_

#include <grpcpp/channel.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ampd::client {

struct Server {
  Server() = default;
  // In plain text, as nobody.
  Server(std::string a) : address(std::move(a)) {}  // NOLINT: an address alone is a server.

  // Why it cannot be told which server is meant; OpenChannel returns it.
  absl::Status unknown;
  // HOST:PORT, [IPV6]:PORT or unix:PATH.
  std::string address = "127.0.0.1:7070";
  // TLS with the system's authorities; any of the three files has the same effect.
  bool tls = false;
  // PEM files: the authorities of the server, in place of the system's; a certificate to show, and its key.
  std::string ca;
  std::string certificate;
  std::string private_key;
  // A file that holds the token; else the token itself; else another file. Unset or empty: none is shown.
  std::string token_file;
  std::optional<std::string> token;
  std::optional<std::string> other_token_file;
  // Where the two come from, for errors.
  std::string token_from = "AMPD_TOKEN";
  std::string other_token_file_from = "AMPD_TOKEN_FILE";
  // Show the token in plain text to another machine too.
  bool insecure = false;
  // Told, in words, what is better changed, such as a token's file that others may read. May be empty.
  std::function<void(const std::string&)> warn;
  // How long a call that answers once may take, in place of each call's own limit. Unset: that. Streams have none.
  std::optional<absl::Duration> timeout;
  // Set once it has answered a call, by every connection to it.
  std::shared_ptr<std::atomic<bool>> answered = std::make_shared<std::atomic<bool>>(false);
};

// INVALID_ARGUMENT for what is no address of a server, naming the option.
absl::Status CheckAddress(const std::string& address);

// Dials lazily. INVALID_ARGUMENT for an address, a file or a token that cannot be used, naming the option; a token that
// would go to another machine in plain text is refused unless `insecure`.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Server& server);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SERVER_H_
