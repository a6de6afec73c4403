// The one door of the gRPC port: who calls, whether they may, and what is written down of it.
#ifndef AMPD_SERVER_SERVICE_CALL_GATE_H_
#define AMPD_SERVER_SERVICE_CALL_GATE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/auth/audit_log.h"
#include "server/auth/caller.h"
#include "server/auth/permissions.h"
#include "server/auth/tokens.h"
#include "server/events/clock.h"

namespace ampd {

// Thread safe. Outlives the server whose calls it sees.
class CallGate {
 public:
  struct Options {
    // Null: nobody is told apart, and everybody may do everything. Outlives the gate, as the audit log does.
    const TokenBook* tokens = nullptr;
    // Of a caller without a token whose certificate was vouched for; ROLE_UNSPECIFIED: a token is needed.
    v1::Role certificate_role = v1::ROLE_UNSPECIFIED;
    // Null: none is kept.
    AuditLog* audit = nullptr;
    const Clock* clock = &SystemClock();
  };

  explicit CallGate(Options options);
  ~CallGate();
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Who makes the call, by its one "authorization: Bearer SECRET", else by its certificate's common name.
  // UNAUTHENTICATED where that is nobody, or the certificate has expired since the handshake.
  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) const;
  // Likewise, by a secret alone.
  absl::StatusOr<Caller> Identify(absl::string_view secret) const;
  bool asks_for_tokens() const { return options_.tokens != nullptr; }

  // Every handler asks first. `method`: "GetJob", of TrainingService. UNAUTHENTICATED as Identify(), PERMISSION_DENIED
  // as CheckRole().
  absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context, absl::string_view method) const;

  // For the server's interceptors. Calls that need a role and are answered by gRPC itself, not by a handler of ours,
  // are refused by it; calls that change something are written down.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptors();

  // Ends the streams, and calls that change something, that this token began: UNAUTHENTICATED.
  void EndCalls(const std::string& token_id);

  // Ends the streams whose token, or certificate, has expired: UNAUTHENTICATED. A thread of the gate's does so every
  // second while there are streams that may. Other calls are answered: they are short, and were admitted.
  void EndExpired();

 private:
  class Factory;
  class Call;

  // Under way; referred to.
  struct Admitted {
    grpc_call* call;
    // When it is ended, if it is still under way then.
    absl::Time ends;
  };
  void Register(const Caller& caller, grpc_call* call, bool is_stream);
  void Unregister(const std::string& token_id, grpc_call* call);
  void WatchExpiry();

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  // By token; by "" those of certificates.
  std::multimap<std::string, Admitted> calls_ ABSL_GUARDED_BY(mutex_);
  // Of them, those that may expire.
  int expiring_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread expiry_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CALL_GATE_H_
