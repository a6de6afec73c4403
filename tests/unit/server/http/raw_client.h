// Clients of the HTTP port that send what they like.
#ifndef AMPD_TESTS_UNIT_SERVER_HTTP_RAW_CLIENT_H_
#define AMPD_TESTS_UNIT_SERVER_HTTP_RAW_CLIENT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/files/unique_fd.h"

namespace ampd {

inline int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return port;
}

// A plain socket. `from`: the last number of its own address, 127.0.0.x.
class Client {
 public:
  explicit Client(const std::string& address, int from = 1, int receive_buffer = 0) {
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer > 0) setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in own = {}, to = {};
    own.sin_family = to.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + from - 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(PortOf(address)));
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  // False: the other end has closed.
  bool Send(const std::string& text) {
    return send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  void Finish() { shutdown(fd_.get(), SHUT_WR); }
  // To the end.
  std::string Read() {
    std::string answer;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(fd_.get(), buffer, sizeof(buffer))) > 0;) answer.append(buffer, got);
    return answer;
  }
  int socket() const { return fd_.get(); }
  // Whether there is something to read, or the end.
  bool IsReadable(int milliseconds) {
    pollfd wanted = {fd_.get(), POLLIN, 0};
    return poll(&wanted, 1, milliseconds) > 0;
  }

 private:
  UniqueFd fd_;
};

// Sends `request` as it is and reads to the end.
inline std::string Exchange(const std::string& address, const std::string& request, int from = 1) {
  Client client(address, from);
  EXPECT_TRUE(client.Send(request));
  return client.Read();
}

inline std::string Get(const std::string& address, const std::string& path, int from = 1) {
  return Exchange(address, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"), from);
}

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_HTTP_RAW_CLIENT_H_
