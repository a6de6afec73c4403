// Which of the connections that were given to gRPC are still open.
#ifndef AMPD_SERVER_MAIN_OPEN_CONNECTIONS_H_
#define AMPD_SERVER_MAIN_OPEN_CONNECTIONS_H_

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>

namespace ampd {

struct ConnectionBounds {
  size_t all = 0;
  // Of them one client's, and a loopback address's, which all users of this machine have.
  size_t client = 0;
  size_t local_client = 0;
};

// gRPC tells nobody when it closes a connection: one has ended whose descriptor is no longer that socket. They are
// looked at when there is no room, some at a time, so that who comes again and again costs little. Not thread-safe.
class OpenConnections {
 public:
  explicit OpenConnections(const ConnectionBounds& bounds) : bounds_(bounds) {}

  // Whether one more of `client` may be let in.
  bool HasRoomFor(const std::string& client, bool is_local);
  // `descriptor` is open; called before it is given away.
  void Add(int descriptor, const std::string& client);

  // As far as they are known to have ended.
  size_t size() const { return open_.size(); }
  size_t CountOf(const std::string& client) const;

 private:
  struct Open {
    dev_t device = 0;
    ino_t inode = 0;
    std::string client;
  };
  struct Client {
    std::set<int> descriptors;
    int looked_at = -1;
  };

  bool HasEnded(int descriptor, const Open& open) const;
  void LookAtAll();
  void LookAtThoseOf(const std::string& client);
  void Forget(int descriptor);

  const ConnectionBounds bounds_;
  std::map<int, Open> open_;
  std::map<std::string, Client> clients_;
  // The next look goes on behind it.
  int looked_at_ = -1;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_OPEN_CONNECTIONS_H_
