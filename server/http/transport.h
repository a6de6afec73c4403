// How the bytes of a connection go to its client and come from it: as they are, or by TLS (tls.h).
#ifndef AMPD_SERVER_HTTP_TRANSPORT_H_
#define AMPD_SERVER_HTTP_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"

namespace ampd {

struct IoResult {
  enum class State {
    // `bytes` of them, one at least, came or went.
    kDone,
    // Nothing did; try again once the socket can be read, or written.
    kWantsRead,
    kWantsWrite,
    // Nothing more will come.
    kEnd,
    // The connection is of no use any more.
    kFailed,
    // The first bytes are an HTTP request in plain text, where TLS was to be. They were not taken from the socket.
    kPlain,
  };
  State state = State::kFailed;
  size_t bytes = 0;
};

// Of a socket that does not block and outlives it. Never waits, raises no SIGPIPE. Used by one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  // `size` >= 1. Takes a bounded number of bytes from the network, and may say kWantsRead while more are there.
  virtual IoResult Read(char* buffer, size_t size) = 0;
  // Takes some of `bytes`, which are not empty. Where it took none, the next call is to begin with the same bytes.
  virtual IoResult Write(absl::string_view bytes) = 0;
  // Tells the client that nothing more will be written; it may go on sending. kDone, or kWantsWrite: to be called
  // again.
  virtual IoResult SendEnd() = 0;

  // The next Read() may compute for milliseconds: not on the thread of all connections.
  virtual bool is_in_handshake() const = 0;
  virtual bool is_tls() const = 0;
  // Whether the client showed a certificate of the authorities that it was asked for.
  virtual bool has_certificate() const = 0;
};

std::unique_ptr<Transport> PlainTransport(int socket);

// What read() and write() left in errno, as a state; `wants` for "not now".
IoResult FailedIo(IoResult::State wants);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_TRANSPORT_H_
