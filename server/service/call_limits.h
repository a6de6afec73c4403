// How many calls may be under way at a time, and the memory of their messages, so that no client, and no crowd of them,
// takes all that the daemon has.
#ifndef AMPD_SERVER_SERVICE_CALL_LIMITS_H_
#define AMPD_SERVER_SERVICE_CALL_LIMITS_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/server_interceptor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/config.pb.h"
#include "engine/core/mutex.h"

namespace ampd {

// As ServerConfig.CallLimits has them, and gRPC's own calls: Health/Check, Health/Watch, and reflection.
enum class CallClass { kReads, kWrites, kPlanning, kWatchers, kTransfers, kChecks, kHealthWatchers, kOthers };
inline constexpr int kCallClasses = 8;

// "reads".
absl::string_view NameOf(CallClass call_class);

// With whom a call shares, all their connections together: "user ann", where users are told apart, else the address of
// `peer` (auth/peer.h): "ipv4:10.0.0.7". Empty for this machine's own callers without a user (loopback, Unix sockets):
// they are not told apart, but for their connections.
std::string ClientOf(absl::string_view user, absl::string_view peer);

// Frees what `message` holds, and leaves it empty.
void Empty(google::protobuf::Message* message);

// A call counts from Admit() until its answer has left the daemon, so that clients who read nothing cannot pile up
// answers. A connection gets no more slots of a class, and no more bytes, than it leaves free: alone it has half of
// them. A client (ClientOf) gets, over all its connections, at most three times what it leaves free: alone three
// quarters, two three sevenths each; so others always find some, but where the class has a single slot. Callers of this
// machine without a user may take all, over several connections.
//
// Health/Check is not refused for anybody else's sake: 16 on each connection. Health/Watch and reflection have 1,000
// slots each, shared by connection and address, this machine's too. Thread-safe.
class CallLimits {
 public:
  // Told of each refusal, on any thread; must not block. May be empty.
  using Listener = std::function<void(CallClass call_class)>;

  // All limits >= 1. (connection_bytes is not looked at: gRPC sees to it.)
  CallLimits(const v1::ServerConfig::CallLimits& limits, Listener refused);
  CallLimits(const CallLimits&) = delete;
  CallLimits& operator=(const CallLimits&) = delete;

  // For grpc::ServerBuilder::experimental().SetInterceptorCreators, as the last: tells when calls are over. Needed by
  // Admit(). Later ones do not see the answers' messages, which are serialised here. This outlives the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptors();

  // Call once a call, as the first of its handler that knows the caller; `user` is empty where none is told apart, and
  // `request_bytes` is the memory of the call's request until it is over, >= 0.
  // TryAgain() (try_again.h) where there is no slot, or no memory; RESOURCE_EXHAUSTED without a delay where there will
  // never be so much of it. The call is to be finished with that. Where many refused calls are left unread, it is
  // cancelled besides. So is a call whose answer finds no room (call_limits.answer_bytes) when it is sent.
  absl::Status Admit(grpc::ServerContextBase* context, CallClass call_class, int64_t request_bytes,
                     absl::string_view user);
  // Instead of Admit(), of a call that is refused for another reason, its caller's above all: it takes no slot. Where
  // many refused calls are left unread, it is cancelled.
  void Refuse(grpc::ServerContextBase* context);

  // Calls that are under way.
  int64_t UnderWay(CallClass call_class) const;
  // Memory of requests under way, and answers that are being sent, bytes.
  int64_t RequestBytes() const;
  int64_t AnswerBytes() const;

 private:
  class Call;
  class Interceptors;
  // What is taken: by a connection, by a client, or by all.
  struct Taken {
    std::array<int64_t, kCallClasses> calls{};
    int64_t request_bytes = 0;
    int64_t answer_bytes = 0;
    // Refused calls that are not over.
    int64_t leaving = 0;
    // Calls of all classes, and those that are leaving.
    int64_t total = 0;
  };
  using Shares = std::unordered_map<std::string, Taken>;

  absl::Status AdmitOf(const std::string& client, grpc::ServerContextBase* context, CallClass call_class,
                       int64_t request_bytes);
  // Why there is no room; empty where there is.
  std::string Shortage(const Call& call, CallClass call_class, int64_t request_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `change` is called for what all have taken, for the call's connection and, where it has one, for its client.
  void Change(const Call& call, absl::FunctionRef<void(Taken&)> change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(Call* call, CallClass call_class, int64_t request_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a refused call; false where it is to be cancelled.
  bool Leave(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of an admitted call: false where there is no room for it.
  bool BeginAnswer(Call* call, int64_t bytes);
  void EndAnswer(Call* call);
  void End(Call* call);

  const std::array<int64_t, kCallClasses> limits_;
  const int64_t request_bytes_limit_;
  const int64_t answer_bytes_limit_;
  const Listener refused_;
  mutable Mutex mutex_;
  std::unordered_map<const grpc::ServerContextBase*, Call*> calls_ ABSL_GUARDED_BY(mutex_);
  Shares connections_ ABSL_GUARDED_BY(mutex_);
  Shares clients_ ABSL_GUARDED_BY(mutex_);
  Taken all_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CALL_LIMITS_H_
