#include "server/main/grpc_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "server/auth/peer.h"

namespace ampd {
namespace {

constexpr ConnectionBounds kWide = {100, 100, 100};

// What was handed over and what was logged, for a test to wait for.
class Seen {
 public:
  void Add(int socket) {
    const MutexLock lock(&mutex_);
    sockets_.emplace_back(socket);
    changed_.NotifyAll();
  }
  void Log(const std::string& line) {
    const MutexLock lock(&mutex_);
    lines_.push_back(line);
    changed_.NotifyAll();
  }
  int WaitForSocket(size_t index) {
    MutexLock lock(&mutex_);
    while (sockets_.size() <= index) changed_.Wait(&mutex_);
    return sockets_[index].get();
  }
  std::string WaitForLine() {
    MutexLock lock(&mutex_);
    while (lines_.empty()) changed_.Wait(&mutex_);
    return lines_.front();
  }
  void Close(size_t index) {
    const MutexLock lock(&mutex_);
    sockets_[index].Reset();
  }
  void Refuse(const std::string& reason) {
    const MutexLock lock(&mutex_);
    absl::StrAppend(&refused_, reason, " ");
  }
  void Pause() {
    const MutexLock lock(&mutex_);
    ++pauses_;
  }
  // One behind the other.
  std::string refused() {
    const MutexLock lock(&mutex_);
    return refused_;
  }
  int pauses() {
    const MutexLock lock(&mutex_);
    return pauses_;
  }
  size_t lines() {
    const MutexLock lock(&mutex_);
    return lines_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::string refused_ ABSL_GUARDED_BY(mutex_);
  int pauses_ ABSL_GUARDED_BY(mutex_) = 0;
};

class Keeper : public GrpcListener::Acceptor {
 public:
  explicit Keeper(Seen* seen) : seen_(seen) {}
  void HandleNewConnection(NewConnectionParameters* connection) override { seen_->Add(connection->fd); }

 private:
  Seen* const seen_;
};

GrpcListener::Options With(Seen* seen, const ConnectionBounds& bounds = kWide) {
  GrpcListener::Options options;
  options.name = "gRPC";
  options.bounds = bounds;
  options.user_timeout = std::chrono::seconds(20);
  options.log = [seen](const std::string& line) { seen->Log(line); };
  options.on_refused = [seen](const char* reason) { seen->Refuse(reason); };
  options.on_pause = [seen] { seen->Pause(); };
  return options;
}

// Invalid where nobody listens.
UniqueFd Connect(int family, int port, const char* source = nullptr) {
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in ipv4 = {};
  ipv4.sin_family = AF_INET;
  if (source != nullptr) {
    inet_pton(AF_INET, source, &ipv4.sin_addr);
    if (bind(socket.get(), reinterpret_cast<sockaddr*>(&ipv4), sizeof(ipv4)) != 0) return UniqueFd();
  }
  ipv4.sin_port = htons(static_cast<uint16_t>(port));
  ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 ipv6 = {};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = ipv4.sin_port;
  ipv6.sin6_addr = in6addr_loopback;
  const int result = family == AF_INET ? connect(socket.get(), reinterpret_cast<sockaddr*>(&ipv4), sizeof(ipv4))
                                       : connect(socket.get(), reinterpret_cast<sockaddr*>(&ipv6), sizeof(ipv6));
  return result == 0 ? std::move(socket) : UniqueFd();
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return UniqueFd();
  return socket;
}

// The other end has closed it.
bool Ends(const UniqueFd& socket) {
  char byte = 0;
  return recv(socket.get(), &byte, 1, 0) <= 0;
}

int OptionOf(int socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  getsockopt(socket, level, option, &value, &size);
  return value;
}

std::string NewFolder() {
  std::string folder = "/tmp/grpc-listener-XXXXXX";
  return mkdtemp(folder.data());
}

TEST(GrpcListener, HandsOverWhoComes) {
  Seen seen;
  auto listener = GrpcListener::OnPort({"127.0.0.1", 0}, With(&seen));
  ASSERT_TRUE(listener.ok()) << listener.status();
  // Who comes before the start waits.
  const UniqueFd client = Connect(AF_INET, (*listener)->port());
  ASSERT_TRUE(client.valid());
  ASSERT_TRUE((*listener)->Start(std::make_unique<Keeper>(&seen)).ok());
  const int socket = seen.WaitForSocket(0);
  EXPECT_EQ(OptionOf(socket, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(OptionOf(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 20000);
  EXPECT_NE(fcntl(socket, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(socket, F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(send(socket, "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), 1);
  const int port = (*listener)->port();
  (*listener)->Stop();
  EXPECT_FALSE(Connect(AF_INET, port).valid());
  EXPECT_EQ(seen.lines(), 0u);
}

TEST(GrpcListener, ListensWhereGrpcWould) {
  for (const char* host : {"127.0.0.1", "::1", "0.0.0.0", "::", "localhost", "::ffff:127.0.0.1"}) {
    grpc::AsyncGenericService service;
    grpc::ServerBuilder builder;
    Address address = {host, 0};
    builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &address.port);
    builder.RegisterAsyncGenericService(&service);
    const auto queue = builder.AddCompletionQueue();
    const auto server = builder.BuildAndStart();
    Seen seen;
    auto listener = GrpcListener::OnPort({host, 0}, With(&seen));
    ASSERT_EQ(listener.ok(), server != nullptr) << host << ": " << listener.status();
    if (server == nullptr) continue;
    for (const int family : {AF_INET, AF_INET6}) {
      EXPECT_EQ(Connect(family, (*listener)->port()).valid(), Connect(family, address.port).valid())
          << host << ", family " << family;
    }
    // Neither beside the other.
    EXPECT_EQ(GrpcListener::OnPort(address, With(&seen)).status().code(), absl::StatusCode::kUnavailable) << host;
    server->Shutdown();
    queue->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) {
    }
  }
}

TEST(GrpcListener, SaysWhyItCannotListen) {
  Seen seen;
  const auto first = GrpcListener::OnPort({"127.0.0.1", 0}, With(&seen));
  ASSERT_TRUE(first.ok());
  const absl::Status taken = GrpcListener::OnPort({"127.0.0.1", (*first)->port()}, With(&seen)).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(taken.message(), "Address already in use")) << taken;
  EXPECT_EQ(GrpcListener::OnPort({"no-such-host.invalid", 0}, With(&seen)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(GrpcListener, ClosesAtOnceWhatIsBeyondTheBounds) {
  Seen seen;
  auto listener = GrpcListener::OnPort({"127.0.0.1", 0}, With(&seen, {3, 1, 2}));
  ASSERT_TRUE(listener.ok());
  ASSERT_TRUE((*listener)->Start(std::make_unique<Keeper>(&seen)).ok());
  const int port = (*listener)->port();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(Connect(AF_INET, port, "127.0.0.2"));
    seen.WaitForSocket(i);
  }
  // One address does not have all.
  EXPECT_TRUE(Ends(Connect(AF_INET, port, "127.0.0.2")));
  clients.push_back(Connect(AF_INET, port));
  seen.WaitForSocket(2);
  EXPECT_TRUE(Ends(Connect(AF_INET, port)));
  // One that has ended makes room.
  seen.Close(0);
  clients.push_back(Connect(AF_INET, port));
  seen.WaitForSocket(3);
  // Though one line tells of both.
  EXPECT_EQ(seen.refused(), "client all ");
  EXPECT_EQ(seen.pauses(), 0);
  EXPECT_EQ(seen.lines(), 1u);
  EXPECT_TRUE(absl::StrContains(seen.WaitForLine(), "127.0.0.2")) << seen.WaitForLine();
}

TEST(GrpcListener, WaitsForDescriptors) {
  Seen seen;
  auto listener = GrpcListener::OnPort({"127.0.0.1", 0}, With(&seen));
  ASSERT_TRUE(listener.ok());
  ASSERT_TRUE((*listener)->Start(std::make_unique<Keeper>(&seen)).ok());
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>((*listener)->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  {
    // The next.
    const UniqueFd next(dup(client.get()));
    none.rlim_cur = static_cast<rlim_t>(next.get());
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int connected = connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const std::string line = seen.WaitForLine();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_TRUE(absl::StrContains(line, "Too many open files")) << line;
  EXPECT_GE(seen.pauses(), 1);
  EXPECT_EQ(seen.refused(), "");
  EXPECT_GE(seen.WaitForSocket(0), 0);
  const UniqueFd later = Connect(AF_INET, (*listener)->port());
  EXPECT_GE(seen.WaitForSocket(1), 0);
}

TEST(GrpcListener, ReplacesASocketAndNothingElse) {
  const std::string folder = NewFolder();
  const std::string path = folder + "/s";
  Seen seen;
  {
    // As a daemon leaves it that is killed.
    const UniqueFd left(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(left.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_FALSE(ConnectTo(path).valid());
  {
    auto listener = GrpcListener::OnSocket(path, With(&seen, {1, 1, 1}));
    ASSERT_TRUE(listener.ok()) << listener.status();
    ASSERT_TRUE((*listener)->Start(std::make_unique<Keeper>(&seen)).ok());
    const UniqueFd client = ConnectTo(path);
    seen.WaitForSocket(0);
    EXPECT_TRUE(Ends(ConnectTo(path)));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "text";
  EXPECT_EQ(GrpcListener::OnSocket(path, With(&seen)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(GrpcListener::OnSocket(std::string(200, 'x'), With(&seen)).status().code(), absl::StatusCode::kUnavailable);
  std::filesystem::remove_all(folder);
}

// Answers every call with its peer.
class PeerService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    class Reactor : public grpc::ServerGenericBidiReactor {
     public:
      explicit Reactor(const std::string& peer) { Finish(grpc::Status(grpc::StatusCode::ABORTED, peer)); }
      void OnDone() override { delete this; }
    };
    return new Reactor(context->peer());
  }
};

std::string AskForPeer(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::Slice nothing;
  grpc::ByteBuffer request(&nothing, 1), response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/x/Y", {}, &request, &response, [&](grpc::Status status) { done.set_value(status); });
  return done.get_future().get().error_message();
}

// Without the port, which is another for each connection.
std::string WithoutPort(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

TEST(GrpcListener, GrpcServesWhatItIsGivenAsItsOwn) {
  const std::string folder = NewFolder();
  PeerService service;
  grpc::ServerBuilder builder, own_builder;
  Seen seen;
  auto listener = GrpcListener::OnPort({"::", 0}, With(&seen));
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto unix_listener = GrpcListener::OnSocket(folder + "/a", With(&seen));
  ASSERT_TRUE(unix_listener.ok()) << unix_listener.status();
  constexpr auto kFromDescriptor = grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD;
  auto acceptor =
      builder.experimental().AddExternalConnectionAcceptor(kFromDescriptor, grpc::InsecureServerCredentials());
  auto unix_acceptor =
      builder.experimental().AddExternalConnectionAcceptor(kFromDescriptor, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE((*listener)->Start(std::move(acceptor)).ok());
  ASSERT_TRUE((*unix_listener)->Start(std::move(unix_acceptor)).ok());
  PeerService own_service;
  int own_port = 0;
  own_builder.AddListeningPort("[::]:0", grpc::InsecureServerCredentials(), &own_port);
  own_builder.AddListeningPort(absl::StrCat("unix:", folder, "/b"), grpc::InsecureServerCredentials());
  own_builder.RegisterCallbackGenericService(&own_service);
  const auto own = own_builder.BuildAndStart();
  ASSERT_NE(own, nullptr);
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    const std::string peer = AskForPeer(absl::StrCat(host, ":", (*listener)->port()));
    EXPECT_EQ(WithoutPort(peer), WithoutPort(AskForPeer(absl::StrCat(host, ":", own_port))));
    EXPECT_TRUE(absl::StartsWith(peer, "ipv")) << peer;
  }
  EXPECT_EQ(PeerAddress(AskForPeer(absl::StrCat("unix:", folder, "/a"))), "unix:");
  EXPECT_EQ(PeerAddress(AskForPeer(absl::StrCat("unix:", folder, "/b"))), "unix:");
  (*listener)->Stop();
  (*unix_listener)->Stop();
  server->Shutdown();
  own->Shutdown();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ampd
