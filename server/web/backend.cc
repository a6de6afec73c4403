#include "server/web/backend.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/service/call_peer.h"

namespace ampd {
namespace {

constexpr size_t kMaxSecretBytes = 200;

}  // namespace

bool IsSecretText(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxSecretBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
}

absl::StatusOr<v1::Job> Backend::GetJob(const Credentials& credentials, const std::string& id) const {
  v1::GetJobRequest request;
  request.set_job_id(id);
  return Call<v1::GetJobRequest, v1::Job>(credentials, &Stub::GetJob, request);
}

void Backend::Prepare(const Credentials& credentials, grpc::ClientContext* context) {
  // gRPC ends the process over a header that it cannot send.
  if (IsSecretText(credentials.secret)) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", credentials.secret));
  }
  context->AddMetadata(kHttpPeerKey, credentials.peer);
}

}  // namespace ampd
