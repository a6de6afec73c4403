// One TCP connection of the HTTP port: a request, an answer, and its end.
#ifndef AMPD_SERVER_HTTP_CONNECTION_H_
#define AMPD_SERVER_HTTP_CONNECTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/files/unique_fd.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"

namespace ampd {

using SteadyTime = std::chrono::steady_clock::time_point;

// Used by one thread at a time: it is handed on.
struct Connection {
  enum class Phase {
    // Until the request is there.
    kReading,
    // With whoever makes a step of its handshake, ReadOnce().
    kInHandshake,
    // With whoever answers it.
    kAnswering,
    // Until the client has taken `output`.
    kWriting,
    // All is sent; until the client closes too. Closing at once would reset the connection where the client still
    // sends, and what it has not read of the answer would be lost to it.
    kLingering,
  };

  // Does not block.
  UniqueFd socket;
  // Of the socket.
  std::unique_ptr<Transport> transport;
  // listening_socket.h.
  std::string peer;
  std::string client;
  Phase phase = Phase::kReading;
  // Of the phase.
  SteadyTime since;
  SteadyTime deadline;
  // What epoll looks for.
  uint32_t events = 0;
  // A step of its handshake was made.
  bool has_shaken_hands = false;
  // What ReadOnce() read.
  IoResult read;
  std::string input;
  RequestReader reader;
  // What is still to be sent: from byte `sent` on.
  std::string output;
  size_t sent = 0;
  // Bytes that came and were not looked at.
  size_t discarded = 0;
};

// Reads once, into `read` and `input`.
void ReadOnce(Connection* connection);

// The time that a client has for so many bytes of an answer: 10 s and 1 s for each 64 KiB.
std::chrono::milliseconds TimeToTake(size_t bytes);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_CONNECTION_H_
