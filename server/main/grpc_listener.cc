#include "server/main/grpc_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/descriptors.h"
#include "server/http/listening_socket.h"

namespace ampd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How many are let in at a socket before others are looked at.
constexpr int kAtOnce = 64;
constexpr milliseconds kPause{100};
constexpr std::chrono::minutes kBetweenLines{1};

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status SetOption(const UniqueFd& socket, int level, int option, int value, absl::string_view name) {
  if (setsockopt(socket.get(), level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return SystemError(name);
}

absl::StatusOr<UniqueFd> ListenAt(const sockaddr* address, socklen_t size, milliseconds user_timeout) {
  UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return SystemError("socket");
  if (address->sa_family == AF_INET6) {
    AMPD_RETURN_IF_ERROR(SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY"));
  }
  if (address->sa_family != AF_UNIX) {
    // Not SO_REUSEPORT, with which a second daemon could take half of this one's calls.
    AMPD_RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
    // Connections have both from here.
    AMPD_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
    const int timeout = static_cast<int>(user_timeout.count());
    AMPD_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout, "TCP_USER_TIMEOUT"));
  }
  if (bind(socket.get(), address, size) != 0) return SystemError("bind");
  if (listen(socket.get(), SOMAXCONN) != 0) return SystemError("listen");
  return socket;
}

in_port_t* PortIn(sockaddr_storage* address) {
  return address->ss_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                        : &reinterpret_cast<sockaddr_in*>(address)->sin_port;
}

// Of IPv4 within IPv6, too.
std::optional<in_addr> Ipv4Of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.ss_family != AF_INET6) return std::nullopt;
  const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&ipv6)) return std::nullopt;
  in_addr ipv4 = {};
  std::copy_n(ipv6.s6_addr + 12, sizeof(ipv4), reinterpret_cast<uint8_t*>(&ipv4));
  return ipv4;
}

bool IsIpv6(const sockaddr_storage& address, const in6_addr& as) {
  return address.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, &as);
}

bool IsAny(const sockaddr_storage& address) {
  const std::optional<in_addr> ipv4 = Ipv4Of(address);
  return ipv4 ? ipv4->s_addr == htonl(INADDR_ANY) : IsIpv6(address, in6addr_any);
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_UNIX) return true;
  const std::optional<in_addr> ipv4 = Ipv4Of(address);
  return ipv4 ? ntohl(ipv4->s_addr) >> 24 == IN_LOOPBACKNET : IsIpv6(address, in6addr_loopback);
}

absl::StatusOr<UniqueFd> ListenAt(const sockaddr_storage& address, milliseconds user_timeout) {
  const socklen_t size = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return ListenAt(reinterpret_cast<const sockaddr*>(&address), size, user_timeout);
}

absl::StatusOr<UniqueFd> ListenAtAll(in_port_t port, milliseconds user_timeout) {
  sockaddr_storage all = {};
  all.ss_family = AF_INET6;
  *PortIn(&all) = port;
  absl::StatusOr<UniqueFd> socket = ListenAt(all, user_timeout);
  if (socket.ok()) return socket;
  // A machine may have no IPv6.
  all.ss_family = AF_INET;
  *PortIn(&all) = port;
  return ListenAt(all, user_timeout);
}

}  // namespace

ConnectionBounds BoundsOfPort() {
  const size_t all = ShareOfDescriptors(2, 8192);
  // A thousand watchers may be behind one address.
  constexpr size_t kOfOne = 1100;
  return {all, std::max(all / 4, std::min(all / 2, kOfOne)), all / 4 * 3};
}

ConnectionBounds BoundsOfWorkers() {
  const size_t all = ShareOfDescriptors(8, 1024);
  return {all, all, all};
}

GrpcListener::GrpcListener(Options options) : options_(std::move(options)), open_(options_.bounds) {}

GrpcListener::~GrpcListener() { Stop(); }

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::OnPort(const Address& address, Options options) {
  std::unique_ptr<GrpcListener> made(new GrpcListener(std::move(options)));
  AMPD_ASSIGN_OR_RETURN(std::vector<sockaddr_storage> found, Resolve(address));
  absl::Status error;
  for (sockaddr_storage& next : found) {
    if (made->port_ != 0) *PortIn(&next) = htons(static_cast<uint16_t>(made->port_));
    const milliseconds timeout = made->options_.user_timeout;
    absl::StatusOr<UniqueFd> socket = IsAny(next) ? ListenAtAll(*PortIn(&next), timeout) : ListenAt(next, timeout);
    if (!socket.ok()) {
      error.Update(socket.status());
      continue;
    }
    made->port_ = PortOf(*socket);
    made->listeners_.push_back(*std::move(socket));
  }
  if (made->listeners_.empty()) return error;
  return made;
}

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::OnSocket(const std::string& path, Options options) {
  std::unique_ptr<GrpcListener> made(new GrpcListener(std::move(options)));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::UnavailableError("the path is too long");
  path.copy(address.sun_path, path.size());
  struct stat there = {};
  // Of a daemon that was killed.
  if (stat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path.c_str());
  AMPD_ASSIGN_OR_RETURN(UniqueFd socket, ListenAt(reinterpret_cast<const sockaddr*>(&address), sizeof(address),
                                                  made->options_.user_timeout));
  made->listeners_.push_back(std::move(socket));
  made->path_ = path;
  return made;
}

absl::Status GrpcListener::Start(std::unique_ptr<Acceptor> acceptor) {
  stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return SystemError("eventfd");
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void GrpcListener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // It cannot fail: nothing was added before.
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  listeners_.clear();
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

void GrpcListener::Run() {
  std::vector<pollfd> watched = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) watched.push_back({listener.get(), POLLIN, 0});
  for (;;) {
    // Rounded up: else it wakes up too early, again and again.
    const auto pause = std::chrono::ceil<milliseconds>(paused_until_ - steady_clock::now()).count();
    const bool is_paused = pause > 0;
    if (poll(watched.data(), is_paused ? 1 : watched.size(), is_paused ? static_cast<int>(pause) : -1) < 0) continue;
    if (watched[0].revents != 0) return;
    for (size_t i = 1; !is_paused && i < watched.size(); ++i) {
      if (watched[i].revents != 0) Accept(watched[i].fd);
    }
  }
}

void GrpcListener::Accept(int listener) {
  for (int i = 0; i < kAtOnce; ++i) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      if (!Admit(listener, socket)) close(socket);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return Pause(errno);
    }
  }
}

bool GrpcListener::Admit(int listener, int socket) {
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  // gRPC asks for it as well, and logs a line where it fails: of one who has gone again.
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&from), &size) != 0) return false;
  const std::string client = NameOfPeer(from).client;
  if (!open_.HasRoomFor(client, IsLoopback(from))) {
    OnRefused(client);
    return false;
  }
  open_.Add(socket, client);
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = socket;
  acceptor_->HandleNewConnection(&connection);
  return true;
}

void GrpcListener::OnRefused(const std::string& client) {
  ++refused_;
  if (options_.on_refused) options_.on_refused(open_.size() >= options_.bounds.all ? "all" : "client");
  const auto now = steady_clock::now();
  if (refusals_logged_ != steady_clock::time_point() && now < refusals_logged_ + kBetweenLines) return;
  options_.log(absl::StrCat(options_.name, ": connections closed since there are too many: ", refused_,
                            ", the last of ", client, "; open are ", open_.size(), " of at most ", options_.bounds.all,
                            ", of that client ", open_.CountOf(client), " of at most ", options_.bounds.client, " (",
                            options_.bounds.local_client, " of one on this machine)"));
  refusals_logged_ = now;
  refused_ = 0;
}

void GrpcListener::Pause(int error) {
  const auto now = steady_clock::now();
  paused_until_ = now + kPause;
  if (options_.on_pause) options_.on_pause();
  if (pause_logged_ != steady_clock::time_point() && now < pause_logged_ + kBetweenLines) return;
  options_.log(absl::StrCat(options_.name, ": new connections wait: accept4: ", strerror(error)));
  pause_logged_ = now;
}

}  // namespace ampd
