#include "server/main/spot_notice.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

// For a connection and its answer together; the daemon's end waits for it.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);

bool WaitFor(int fd, short events, absl::Time deadline) {
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) return false;
    pollfd waited{fd, events, 0};
    const int ready = poll(&waited, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

UniqueFd Connect(const HttpUrl& url, absl::Time deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  // No name is looked up: that could take longer than the notice leaves.
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(url.host.c_str(), absl::StrCat(url.port).c_str(), &hints, &found) != 0) return UniqueFd();
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, &freeaddrinfo);
  UniqueFd fd(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  if (connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0) return fd;
  int error = 0;
  socklen_t size = sizeof(error);
  const bool connected = errno == EINPROGRESS && WaitFor(fd.get(), POLLOUT, deadline) &&
                         getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  return connected ? std::move(fd) : UniqueFd();
}

// Whether a GET is answered with 200. Only the beginning of the answer is read.
bool Answers200(const HttpUrl& url) {
  const absl::Time deadline = absl::Now() + kAnswerTime;
  const UniqueFd fd = Connect(url, deadline);
  if (!fd.valid()) return false;
  const std::string request = absl::StrCat("GET ", url.path, " HTTP/1.0\r\nHost: ", url.host, "\r\n\r\n");
  // Few bytes into an empty socket.
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return false;
  }
  std::string answer;
  std::array<char, 64> bytes;
  constexpr size_t kStatusLine = 12;  // "HTTP/1.1 200"
  while (answer.size() < kStatusLine && WaitFor(fd.get(), POLLIN, deadline)) {
    const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (n <= 0) break;
    answer.append(bytes.data(), static_cast<size_t>(n));
  }
  return answer.size() >= kStatusLine && absl::StartsWith(answer, "HTTP/1.") && answer.substr(8, 4) == " 200";
}

}  // namespace

SpotNotice::SpotNotice(Options options, std::function<void(const std::string&)> on_notice)
    : options_(std::move(options)), on_notice_(std::move(on_notice)), thread_([this] { Run(); }) {}

SpotNotice::~SpotNotice() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

std::string SpotNotice::Look() const {
  if (!options_.file.empty() && access(options_.file.c_str(), F_OK) == 0) return options_.file;
  if (options_.url && Answers200(*options_.url)) return options_.url->ToString();
  return "";
}

void SpotNotice::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    lock.Unlock();
    const std::string what = Look();
    if (!what.empty()) return on_notice_(what);
    lock.Lock();
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(options_.interval);
    while (!stopping_ && changed_.WaitUntil(&mutex_, deadline)) {
    }
  }
}

}  // namespace ampd
