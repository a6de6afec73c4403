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

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

// For connections and answers of one look together; the daemon's end waits for it.
constexpr std::chrono::seconds kAnswerTime{1};
// Of an answer, head included; the rest is not read.
constexpr size_t kAnswerBytes = 16 << 10;
constexpr size_t kMaxTokenBytes = 1024;
// Without an answer, before it is told.
constexpr int kSilentLooks = 3;
constexpr char kGooglePath[] = "/computeMetadata/";

// By the clock that nobody sets.
using Deadline = std::chrono::steady_clock::time_point;

bool WaitFor(int fd, short events, Deadline deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd waited{fd, events, 0};
    const int ready = poll(&waited, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

UniqueFd Connect(const HttpUrl& url, Deadline deadline) {
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

struct Answer {
  // 0: there was none in time.
  int status = 0;
  // Its beginning.
  std::string body;
};

// HTTP/1.0, so that the connection ends with the answer, which comes in one piece.
std::string RequestText(absl::string_view method, const HttpUrl& url, absl::string_view path,
                        absl::string_view header) {
  std::string text = absl::StrCat(method, " ", path, " HTTP/1.0\r\nHost: ", url.host, "\r\n");
  if (!header.empty()) absl::StrAppend(&text, header, "\r\n");
  // A body that there is none of: some services refuse a PUT that does not say so.
  if (method == "PUT") absl::StrAppend(&text, "Content-Length: 0\r\n");
  return absl::StrCat(text, "\r\n");
}

// Whether the body is as long as the head says it is; where the head says nothing, the connection's end tells.
bool IsWhole(absl::string_view received) {
  const size_t end = received.find("\r\n\r\n");
  if (end == absl::string_view::npos) return false;
  for (const absl::string_view line : absl::StrSplit(received.substr(0, end), "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    size_t bytes = 0;
    if (!absl::EqualsIgnoreCase(field.first, "content-length") || !absl::SimpleAtoi(field.second, &bytes)) continue;
    return received.size() - end - 4 >= bytes;
  }
  return false;
}

// What comes until it is whole, the connection ends, enough is there, or the time is over.
std::string ReceiveBeginning(int fd, Deadline deadline) {
  std::string received;
  std::array<char, 1024> bytes;
  while (received.size() < kAnswerBytes && !IsWhole(received) && WaitFor(fd, POLLIN, deadline)) {
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
    if (n <= 0) break;
    received.append(bytes.data(), static_cast<size_t>(n));
  }
  return received;
}

Answer ParseAnswer(absl::string_view text) {
  constexpr size_t kStatusLine = 12;  // "HTTP/1.1 200"
  Answer answer;
  if (text.size() < kStatusLine || !absl::StartsWith(text, "HTTP/1.") || text[8] != ' ') return answer;
  if (!absl::SimpleAtoi(text.substr(9, 3), &answer.status)) return {};
  const size_t end = text.find("\r\n\r\n");
  if (end != absl::string_view::npos) answer.body = std::string(text.substr(end + 4));
  return answer;
}

Answer Ask(absl::string_view method, const HttpUrl& url, absl::string_view path, absl::string_view header,
           Deadline deadline) {
  const UniqueFd fd = Connect(url, deadline);
  if (!fd.valid()) return {};
  const std::string request = RequestText(method, url, path, header);
  // Few bytes into an empty socket.
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) return {};
  return ParseAnswer(ReceiveBeginning(fd.get(), deadline));
}

// Of IMDSv2; empty where it gives none. It goes into a header again.
std::string AskForToken(const HttpUrl& url, Deadline deadline) {
  const Answer answer = Ask("PUT", url, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", deadline);
  const bool fits = answer.status == 200 && answer.body.size() <= kMaxTokenBytes &&
                    std::all_of(answer.body.begin(), answer.body.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return fits ? answer.body : "";
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

std::string SpotNotice::Look() {
  if (!options_.file.empty() && access(options_.file.c_str(), F_OK) == 0) return options_.file;
  if (options_.url && UrlTells()) return options_.url->ToString();
  return "";
}

bool SpotNotice::UrlTells() {
  const HttpUrl& url = *options_.url;
  const Deadline deadline = std::chrono::steady_clock::now() + kAnswerTime;
  const bool google = absl::StartsWith(url.path, kGooglePath);
  const auto get = [&] {
    std::string header = google ? "Metadata-Flavor: Google" : "";
    if (!token_.empty()) header = absl::StrCat("X-aws-ec2-metadata-token: ", token_);
    return Ask("GET", url, url.path, header, deadline);
  };
  Answer answer = get();
  if (answer.status == 401) {
    // None was sent, or it has expired.
    token_ = AskForToken(url, deadline);
    if (!token_.empty()) answer = get();
  }
  Judge(answer.status);
  return answer.status == 200 && (!google || absl::StripAsciiWhitespace(answer.body) == "TRUE");
}

void SpotNotice::Judge(int status) {
  // One answer that is late says nothing.
  silent_ = status == 0 ? silent_ + 1 : 0;
  if (status == 0 && silent_ < kSilentLooks) return;
  if (std::exchange(told_, status) == status || status == 200 || status == 404) return;
  const std::string what =
      status == 0 ? "does not answer" : absl::StrCat("answers with status ", status, ", neither 200 nor 404");
  options_.log(absl::StrCat("spot_notice_url: ", options_.url->ToString(), " ", what, ": no notice would be seen"));
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
