// Calls of the service, made within the daemon for clients of the HTTP port: who may do what, limits and the audit log
// are the service's own.
#ifndef AMPD_SERVER_WEB_BACKEND_H_
#define AMPD_SERVER_WEB_BACKEND_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "engine/core/mutex.h"
#include "server/service/grpc_status.h"

namespace ampd {

// Who makes a request, as far as it shows.
struct Credentials {
  // Of a token; empty: none. One that IsSecretText() (access.h).
  std::string secret;
  // As gRPC writes it: "ipv4:10.0.0.7:51334".
  std::string peer;
};

// Thread-safe. The server is to outlive its calls from within the process: Stop() comes before its shutdown.
class Backend {
 public:
  using Stub = v1::TrainingService::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);
  template <typename Request, typename Response>
  using AsyncMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*)(grpc::ClientContext*,
                                                                                           const Request&,
                                                                                           grpc::CompletionQueue*);

  // Of a server in this process (grpc::Server::InProcessChannel).
  explicit Backend(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::TrainingService::NewStub(channel)) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // One call, from before it begins until all of it is over. Ends before the backend.
  class OpenCall {
   public:
    OpenCall(Backend* backend, const Credentials& credentials);
    ~OpenCall();
    OpenCall(const OpenCall&) = delete;
    OpenCall& operator=(const OpenCall&) = delete;

    // Null once the backend was stopped.
    Stub* stub() const { return stub_; }
    grpc::ClientContext* context() { return &context_; }

   private:
    Backend* const backend_;
    grpc::ClientContext context_;
    // Set by the constructor.
    Stub* stub_ = nullptr;
  };

  // The call's answer or error; DEADLINE_EXCEEDED after `timeout`.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const Credentials& credentials, Method<Request, Response> method,
                                const Request& request, absl::Duration timeout = absl::Seconds(30)) {
    OpenCall call(this, credentials);
    if (call.stub() == nullptr) return Stopped();
    call.context()->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    Response response;
    const grpc::Status status = (call.stub()->*method)(call.context(), request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  // As Call(), of a call that may wait for long: CANCELLED soon after `is_left`, asked some times a second, is true.
  template <typename Request, typename Response>
  absl::StatusOr<Response> LongCall(const Credentials& credentials, AsyncMethod<Request, Response> method,
                                    const Request& request, absl::Duration timeout, absl::FunctionRef<bool()> is_left) {
    OpenCall call(this, credentials);
    if (call.stub() == nullptr) return Stopped();
    call.context()->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    grpc::CompletionQueue queue;
    Response response;
    grpc::Status status;
    const auto reader = (call.stub()->*method)(call.context(), request, &queue);
    reader->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    const auto next_look = [] { return absl::ToChronoTime(absl::Now() + kLook); };
    while (queue.AsyncNext(&tag, &ok, next_look()) == grpc::CompletionQueue::TIMEOUT) {
      if (is_left()) call.context()->TryCancel();
    }
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  absl::StatusOr<v1::Job> GetJob(const Credentials& credentials, const std::string& id);

  // Cancels the calls under way, waits until they are over, closes the channel, and refuses further calls.
  void Stop();

  // Of calls after that: UNAVAILABLE.
  static absl::Status Stopped();

 private:
  // Between two looks whether somebody still waits.
  static constexpr absl::Duration kLook = absl::Milliseconds(250);

  Mutex mutex_;
  CondVar changed_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<OpenCall*> calls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_BACKEND_H_
