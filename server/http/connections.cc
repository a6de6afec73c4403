#include "server/http/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/http/listening_socket.h"

namespace ampd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What epoll tells of what is no connection; those count on from there.
constexpr uint64_t kListener = 0;
constexpr uint64_t kWake = 1;
constexpr int kEvents = 64;
constexpr size_t kReadBytes = 16 << 10;
// How many are let in before others are looked at again.
constexpr int kAtOnce = 64;
constexpr milliseconds kNoDescriptorsPause{100};

constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

bool IsTryAgain(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat("http: ", what, ": ", strerror(errno)));
}

absl::Status WatchFor(int epoll, int operation, int descriptor, uint32_t events, uint64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, descriptor, &event) == 0 ? absl::OkStatus() : SystemError("epoll_ctl");
}

std::pair<bool, uint64_t> TurnOf(uint64_t id, const Connection& connection) {
  return {!connection.has_shaken_hands, id};
}

}  // namespace

void ReadOnce(Connection* connection) {
  connection->input.resize(kReadBytes);
  connection->read = connection->transport->Read(connection->input.data(), connection->input.size());
  connection->input.resize(connection->read.bytes);
}

milliseconds TimeToTake(size_t bytes) { return milliseconds(10'000 + static_cast<int64_t>(bytes >> 16) * 1000); }

absl::StatusOr<std::unique_ptr<Connections>> Connections::Start(UniqueFd listener, Options options) {
  std::unique_ptr<Connections> connections(new Connections(std::move(listener), std::move(options)));
  AMPD_RETURN_IF_ERROR(connections->OpenEpoll());
  connections->thread_ = std::thread([self = connections.get()] { self->Run(); });
  return connections;
}

Connections::Connections(UniqueFd listener, Options options)
    : options_(std::move(options)), listener_(std::move(listener)), last_id_(kWake) {}

Connections::~Connections() = default;

absl::Status Connections::OpenEpoll() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) return SystemError("epoll and eventfd");
  AMPD_RETURN_IF_ERROR(WatchFor(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener));
  return WatchFor(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWake);
}

void Connections::Wake() {
  const uint64_t one = 1;
  // It fails only where the thread has more than enough to wake up for.
  (void)!write(wake_.get(), &one, sizeof(one));
}

bool Connections::is_stopped() {
  const MutexLock lock(&mutex_);
  return stopped_;
}

void Connections::GiveBack(std::unique_ptr<Connection> connection) {
  const MutexLock lock(&mutex_);
  answered_.erase(connection.get());
  if (stopped_) return;
  given_back_.push_back(std::move(connection));
  Wake();
}

void Connections::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopped_ = true;
    for (Connection* connection : answered_) shutdown(connection->socket.get(), SHUT_RDWR);
    answered_.clear();
  }
  Wake();
  thread_.join();
}

void Connections::Run() {
  epoll_event events[kEvents];
  while (!is_stopped()) {
    const int count = epoll_wait(epoll_.get(), events, kEvents, WaitMilliseconds());
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kListener) {
        Accept();
      } else if (id == kWake) {
        TakeBack();
      } else {
        Serve(id);
      }
    }
    EndLate();
  }
  connections_.clear();
  listener_.Reset();
}

int Connections::WaitMilliseconds() const {
  SteadyTime until = closed_until_;
  if (!deadlines_.empty() && (until == SteadyTime() || deadlines_.begin()->first < until)) {
    until = deadlines_.begin()->first;
  }
  if (until == SteadyTime()) return -1;
  // Rounded up: else it wakes up too early, again and again.
  const auto wait = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(wait, 0, INT_MAX));
}

void Connections::Accept() {
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof(from);
    UniqueFd socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Add(std::move(socket), from);
    } else if (IsTryAgain(errno)) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (CloseOne([](const Connection&) { return size_t{1}; })) {
        TellRefused("descriptors");
        continue;
      }
      if (options_.on_pause) options_.on_pause();
      closed_until_ = steady_clock::now() + kNoDescriptorsPause;
      (void)WatchFor(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), 0, kListener);
      return;
    }
  }
}

void Connections::Add(UniqueFd socket, const sockaddr_storage& from) {
  size_t all = connections_.size();
  {
    const MutexLock lock(&mutex_);
    all += answered_.size() + given_back_.size();
  }
  const bool full = all >= static_cast<size_t>(options_.max_connections);
  // Another, or where none waits for its client this one.
  if (full) TellRefused("all");
  if (full && !CloseOne([](const Connection&) { return size_t{1}; })) return;
  // Events of a stream are to go out as they come.
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const uint64_t id = ++last_id_;
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  const int descriptor = connection->socket.get();
  connection->transport = options_.transport ? options_.transport(descriptor) : PlainTransport(descriptor);
  if (connection->transport == nullptr) return;
  PeerName name = NameOfPeer(from);
  connection->peer = std::move(name.peer);
  connection->client = std::move(name.client);
  Connection* const added = connection.get();
  connections_.emplace(id, std::move(connection));
  Watch(id, added, Connection::Phase::kReading, EPOLLIN, options_.request_time);
}

void Connections::Watch(uint64_t id, Connection* connection, Connection::Phase phase, uint32_t events,
                        milliseconds time) {
  const bool is_watched = deadlines_.erase({connection->deadline, id}) > 0;
  connection->phase = phase;
  connection->since = steady_clock::now();
  connection->deadline = connection->since + time;
  if (!is_watched) return Keep(id, connection, events);
  deadlines_.emplace(connection->deadline, id);
  LookFor(id, connection, events);
}

void Connections::Keep(uint64_t id, Connection* connection, uint32_t events) {
  deadlines_.emplace(connection->deadline, id);
  connection->events = events;
  if (!WatchFor(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), events, id).ok()) Close(id);
}

void Connections::LookFor(uint64_t id, Connection* connection, uint32_t events) {
  if (connection->events == events) return;
  connection->events = events;
  if (!WatchFor(epoll_.get(), EPOLL_CTL_MOD, connection->socket.get(), events, id).ok()) Close(id);
}

void Connections::Await(uint64_t id, Connection* connection, IoResult result) {
  if (result.state == IoResult::State::kWantsRead) return LookFor(id, connection, EPOLLIN);
  if (result.state == IoResult::State::kWantsWrite) return LookFor(id, connection, EPOLLOUT);
  Close(id);
}

std::unique_ptr<Connection> Connections::Forget(uint64_t id) {
  const auto found = connections_.find(id);
  std::unique_ptr<Connection> connection = std::move(found->second);
  connections_.erase(found);
  const auto waiting = waiting_for_hands_.find(connection->client);
  if (waiting != waiting_for_hands_.end() && waiting->second.erase(TurnOf(id, *connection)) > 0 &&
      waiting->second.empty()) {
    waiting_for_hands_.erase(waiting);
  }
  if (deadlines_.erase({connection->deadline, id}) > 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  }
  return connection;
}

void Connections::Close(uint64_t id) { Forget(id).reset(); }

void Connections::Serve(uint64_t id) {
  const auto found = connections_.find(id);
  // Closed for the sake of another since the event came.
  if (found == connections_.end()) return;
  Connection* const connection = found->second.get();
  // Of one that looks for nothing only its failure is told.
  if (connection->events == 0) return Close(id);
  if (connection->phase == Connection::Phase::kReading) return Read(id, connection);
  if (connection->phase == Connection::Phase::kWriting) return Write(id, connection);
  Discard(id, connection);
}

void Connections::Read(uint64_t id, Connection* connection) {
  if (options_.on_handshake && connection->transport->is_in_handshake()) {
    return waiting_for_hands_.contains(connection->client) ? WaitForHands(id, Forget(id)) : ShakeHands(id);
  }
  ReadOnce(connection);
  TakeRead(id, connection);
}

void Connections::ShakeHands(uint64_t id) {
  std::unique_ptr<Connection> connection = HandOver(id, Connection::Phase::kInHandshake);
  if (connection != nullptr) connection = options_.on_handshake(std::move(connection));
  if (connection == nullptr) return;
  {
    const MutexLock lock(&mutex_);
    answered_.erase(connection.get());
  }
  WaitForHands(id, std::move(connection));
}

void Connections::WaitForHands(uint64_t id, std::unique_ptr<Connection> connection) {
  Connection* const waiting = connection.get();
  waiting->phase = Connection::Phase::kReading;
  waiting_for_hands_[waiting->client].insert(TurnOf(id, *waiting));
  connections_.emplace(id, std::move(connection));
  Keep(id, waiting, 0);
}

void Connections::ShakeNextHand(const std::string& client) {
  const auto waiting = waiting_for_hands_.find(client);
  if (waiting == waiting_for_hands_.end()) return;
  const auto& [is_new, first] = *waiting->second.begin();
  ShakeHands(is_new ? waiting->second.rbegin()->second : first);
}

void Connections::TakeRead(uint64_t id, Connection* connection) {
  const std::string input = std::move(connection->input);
  const IoResult got = connection->read;
  switch (got.state) {
    case IoResult::State::kDone:
      return Take(id, connection, input);
    case IoResult::State::kEnd:
      return End(id, connection);
    case IoResult::State::kPlain:
      return RefusePlain(id, connection);
    default:
      return Await(id, connection, got);
  }
}

void Connections::Take(uint64_t id, Connection* connection, absl::string_view bytes) {
  connection->reader.Take(bytes);
  if (connection->reader.TakeExpectation()) {
    // There is room for it: nothing of an answer was sent before.
    const IoResult sent = connection->transport->Write(kContinue);
    if (sent.state != IoResult::State::kDone || sent.bytes != sizeof(kContinue) - 1) return Close(id);
  }
  if (connection->reader.done()) return Answer(id);
  LookFor(id, connection, EPOLLIN);
}

// Else a browser shows nothing but a broken connection to whoever forgot the "s".
void Connections::RefusePlain(uint64_t id, Connection* connection) {
  connection->transport = PlainTransport(connection->socket.get());
  connection->reader.Refuse(400, absl::InvalidArgumentError("this port speaks TLS: ask it with https://"));
  Answer(id);
}

void Connections::End(uint64_t id, Connection* connection) {
  // Who said nothing is told nothing.
  if (!connection->reader.begun()) return Close(id);
  connection->reader.TakeEnd();
  Answer(id);
}

std::unique_ptr<Connection> Connections::HandOver(uint64_t id, Connection::Phase phase) {
  std::unique_ptr<Connection> connection = Forget(id);
  connection->phase = phase;
  const MutexLock lock(&mutex_);
  if (stopped_) return nullptr;
  answered_.insert(connection.get());
  return connection;
}

void Connections::Answer(uint64_t id) {
  std::unique_ptr<Connection> connection = HandOver(id, Connection::Phase::kAnswering);
  if (connection != nullptr) connection = options_.on_request(std::move(connection));
  if (connection != nullptr) GiveBack(std::move(connection));
}

void Connections::TakeBack() {
  uint64_t count = 0;
  (void)!read(wake_.get(), &count, sizeof(count));
  std::vector<std::unique_ptr<Connection>> given_back;
  {
    const MutexLock lock(&mutex_);
    given_back.swap(given_back_);
  }
  for (std::unique_ptr<Connection>& connection : given_back) {
    const uint64_t id = ++last_id_;
    Connection* const added = connection.get();
    connections_.emplace(id, std::move(connection));
    if (added->phase == Connection::Phase::kInHandshake) {
      const std::string client = added->client;
      added->phase = Connection::Phase::kReading;
      added->has_shaken_hands = true;
      // From now on it waits for its client again, until the same deadline.
      added->since = steady_clock::now();
      Keep(id, added, EPOLLIN);
      if (connections_.contains(id)) TakeRead(id, added);
      ShakeNextHand(client);
    } else {
      Watch(id, added, Connection::Phase::kWriting, EPOLLOUT, TimeToTake(added->output.size()));
    }
  }
  KeepWithinBytes();
}

void Connections::Write(uint64_t id, Connection* connection) {
  while (connection->sent < connection->output.size()) {
    const IoResult sent = connection->transport->Write(absl::string_view(connection->output).substr(connection->sent));
    if (sent.state != IoResult::State::kDone) return Await(id, connection, sent);
    connection->sent += sent.bytes;
  }
  Linger(id, connection);
}

void Connections::Linger(uint64_t id, Connection* connection) {
  connection->output = std::string();
  connection->sent = 0;
  const IoResult ended = connection->transport->SendEnd();
  if (ended.state != IoResult::State::kDone) return Await(id, connection, ended);
  Watch(id, connection, Connection::Phase::kLingering, EPOLLIN, options_.linger_time);
}

void Connections::Discard(uint64_t id, Connection* connection) {
  char buffer[kReadBytes];
  // As it comes from the network: nobody looks at it.
  const ssize_t got = recv(connection->socket.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && IsTryAgain(errno)) return;
  if (got > 0) connection->discarded += static_cast<size_t>(got);
  if (got <= 0 || connection->discarded > options_.linger_bytes) Close(id);
}

void Connections::EndLate() {
  const SteadyTime now = steady_clock::now();
  if (closed_until_ != SteadyTime() && closed_until_ <= now) {
    closed_until_ = SteadyTime();
    (void)WatchFor(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListener);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    Connection* const connection = connections_.at(id).get();
    if (connection->phase == Connection::Phase::kReading && connection->reader.begun()) {
      connection->reader.Refuse(408, absl::DeadlineExceededError(absl::StrCat("the request was not there after ",
                                                                              options_.request_time.count(), " ms")));
      Answer(id);
    } else {
      Close(id);
    }
  }
}

bool Connections::CloseOne(const std::function<size_t(const Connection&)>& weight) {
  std::map<absl::string_view, size_t> weights;
  for (const auto& [id, connection] : connections_) weights[connection->client] += weight(*connection);
  const auto heaviest = std::max_element(weights.begin(), weights.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
  if (heaviest == weights.end() || heaviest->second == 0) return false;
  auto oldest = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    if (it->second->client != heaviest->first || weight(*it->second) == 0) continue;
    if (oldest == connections_.end() || it->second->since < oldest->second->since) oldest = it;
  }
  Close(oldest->first);
  return true;
}

void Connections::TellRefused(const char* reason) const {
  if (options_.on_refused) options_.on_refused(reason);
}

void Connections::KeepWithinBytes() {
  const auto bytes = [](const Connection& connection) { return connection.output.size(); };
  size_t held = 0;
  int holders = 0;
  for (const auto& [id, connection] : connections_) {
    held += bytes(*connection);
    holders += connection->output.empty() ? 0 : 1;
  }
  // One answer may be larger than the bound.
  for (; held > options_.held_bytes && holders > 1; --holders) {
    const size_t before = held;
    if (!CloseOne(bytes)) return;
    TellRefused("answers");
    held = 0;
    for (const auto& [id, connection] : connections_) held += bytes(*connection);
    if (held >= before) return;
  }
}

}  // namespace ampd
