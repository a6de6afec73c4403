// The connections of the HTTP port while they wait for their clients: for a request, for an answer to be taken, for the
// end. None of that takes a thread from who answers.
#ifndef AMPD_SERVER_HTTP_CONNECTIONS_H_
#define AMPD_SERVER_HTTP_CONNECTIONS_H_

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/http/connection.h"

namespace ampd {

// One thread waits for all of them; it takes no bytes of a request beyond RequestReader's bounds, and computes nothing:
// steps of handshakes are made elsewhere.
class Connections {
 public:
  struct Options {
    // In all, those that are being answered among them. For one more the oldest that waits for its client is closed, of
    // the client that has the most of those: a flood pushes out itself.
    int max_connections = 1024;
    // From a connection's begin until its whole request is there.
    std::chrono::milliseconds request_time{10'000};
    // From the end of an answer until the client closes, and the bytes that are thrown away meanwhile.
    std::chrono::milliseconds linger_time{5'000};
    size_t linger_bytes = 1 << 20;
    // Of answers that wait for their clients. For more, one goes as above: of the client that holds the most bytes.
    size_t held_bytes = 64 << 20;
    // Given a connection that is to be read once, which may take milliseconds. GiveBack() is to follow, unless it
    // returns the connection, which it is given again once another of that client was given back; there must be one.
    // Called on the thread; must not wait. Empty: handshakes are done on the thread.
    std::function<std::unique_ptr<Connection>(std::unique_ptr<Connection>)> on_handshake;
    // Given a connection with a request that is done, or refused. GiveBack() is to follow, unless it returns the
    // connection. Called on the thread; must not wait.
    std::function<std::unique_ptr<Connection>(std::unique_ptr<Connection>)> on_request;
    // Told of each connection that is closed for want of room: for one more than max_connections ("all"), for its
    // descriptor ("descriptors") or its answer's bytes ("answers"); and whenever nobody is let in, since there are no
    // descriptors and none to close. May be empty. Called on the thread.
    std::function<void(const char* reason)> on_refused;
    std::function<void()> on_pause;
    // Of a new connection's socket; null: it is closed. Called on the thread. Empty: plain text.
    std::function<std::unique_ptr<Transport>(int socket)> transport;
  };

  // UNAVAILABLE where the system lacks what it takes. `listener` does not block.
  static absl::StatusOr<std::unique_ptr<Connections>> Start(UniqueFd listener, Options options);
  // Stop() was called.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // After a step of the handshake: it goes on. After an answer: what is left of `output` is sent, then the connection
  // ends. Thread-safe; harmless once stopped.
  void GiveBack(std::unique_ptr<Connection> connection);

  // Closes the port and all connections; those that are being answered fail at the next write. Call it once.
  void Stop();

 private:
  explicit Connections(UniqueFd listener, Options options);
  absl::Status OpenEpoll();
  void Wake();
  bool is_stopped();

  // All below on the thread.
  void Run();
  int WaitMilliseconds() const;
  void Accept();
  void Add(UniqueFd socket, const sockaddr_storage& from);
  void Serve(uint64_t id);
  void Read(uint64_t id, Connection* connection);
  void TakeRead(uint64_t id, Connection* connection);
  void ShakeHands(uint64_t id);
  // Keeps it until others of its client were given back; first those that have begun, into which work has gone, then
  // the newest: where more come than can be served, the oldest are closed before their turn anyway.
  void WaitForHands(uint64_t id, std::unique_ptr<Connection> connection);
  void ShakeNextHand(const std::string& client);
  void Take(uint64_t id, Connection* connection, absl::string_view bytes);
  void RefusePlain(uint64_t id, Connection* connection);
  void Write(uint64_t id, Connection* connection);
  void Linger(uint64_t id, Connection* connection);
  void Discard(uint64_t id, Connection* connection);
  void TakeBack();
  void EndLate();
  void End(uint64_t id, Connection* connection);
  void Answer(uint64_t id);
  // Takes it out of those that are waited for; null: all is to stop.
  std::unique_ptr<Connection> HandOver(uint64_t id, Connection::Phase phase);
  // Keeps it, watched for `events` until the time is over.
  void Watch(uint64_t id, Connection* connection, Connection::Phase phase, uint32_t events,
             std::chrono::milliseconds time);
  // Until its deadline.
  void Keep(uint64_t id, Connection* connection, uint32_t events);
  // Goes on once the transport can do what it wants; ends the connection where `result` is neither want.
  void Await(uint64_t id, Connection* connection, IoResult result);
  void LookFor(uint64_t id, Connection* connection, uint32_t events);
  void Close(uint64_t id);
  std::unique_ptr<Connection> Forget(uint64_t id);
  // Closes the oldest connection of the client for which `weight` adds up to the most. False: none weighs anything.
  bool CloseOne(const std::function<size_t(const Connection&)>& weight);
  void KeepWithinBytes();
  void TellRefused(const char* reason) const;

  const Options options_;
  // Of the thread, from Start() on.
  UniqueFd listener_;
  UniqueFd epoll_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::set<std::pair<SteadyTime, uint64_t>> deadlines_;
  uint64_t last_id_;
  // Of each client those in WaitForHands(), first those that have begun. They look for no events.
  std::map<std::string, std::set<std::pair<bool, uint64_t>>> waiting_for_hands_;
  // Until then nobody is let in: there are no descriptors.
  SteadyTime closed_until_;

  // An eventfd; itself thread-safe.
  UniqueFd wake_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Connection>> given_back_ ABSL_GUARDED_BY(mutex_);
  // With those who answer them.
  std::set<Connection*> answered_ ABSL_GUARDED_BY(mutex_);
  // Started last, joined by Stop().
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_CONNECTIONS_H_
