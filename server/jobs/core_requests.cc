// What clients ask for. Jobs are read from the store, so that what is answered is durable.
#include "engine/core/status.h"
#include "server/jobs/core.h"
#include "server/jobs/credentials.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestId = 200;
constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;

absl::Status OtherBody(const std::string& request_id) {
  return absl::AlreadyExistsError(absl::StrCat("request_id \"", request_id, "\" was used with another body"));
}

}  // namespace

void ControllerCore::CreateJob(CreateJobParams params, ReplyPtr<v1::Job> reply) {
  if (params.request_id.size() > kMaxRequestId) {
    return reply->Send(absl::InvalidArgumentError(
        absl::StrCat("request_id: ", params.request_id.size(), " bytes, at most ", kMaxRequestId)));
  }
  const std::string body_hash = Sha256(params.body);
  if (params.request_id.empty()) return InsertJob(std::move(params), body_hash, std::move(reply));
  const auto under_way = creating_.find(params.request_id);
  if (under_way != creating_.end()) {
    if (under_way->second.body_hash != body_hash) return reply->Send(OtherBody(params.request_id));
    under_way->second.replies.push_back(std::move(reply));
    return;
  }
  creating_[params.request_id] = {body_hash, {std::move(reply)}};
  const std::string request_id = params.request_id;
  const std::string body = params.body;
  auto found = std::make_shared<Reply<std::optional<v1::Job>>>([this, body_hash, params = std::move(params)](
                                                                   absl::StatusOr<std::optional<v1::Job>> job) mutable {
    const std::string id = params.request_id;
    if (!job.ok()) return AnswerRequest(id, job.status());
    if (job->has_value()) return AnswerRequest(id, **std::move(job));
    InsertJob(
        std::move(params), body_hash,
        std::make_shared<Reply<v1::Job>>([this, id](absl::StatusOr<v1::Job> created) { AnswerRequest(id, created); }));
  });
  FindRequest(request_id, body, std::move(found));
}

void ControllerCore::AnswerRequest(const std::string& request_id, const absl::StatusOr<v1::Job>& job) {
  const auto node = creating_.extract(request_id);
  if (node.empty()) return;
  for (const ReplyPtr<v1::Job>& reply : node.mapped().replies) reply->Send(job);
}

void ControllerCore::FindRequest(const std::string& request_id, const std::string& body,
                                 ReplyPtr<std::optional<v1::Job>> reply) {
  store_->Read([this, request_id, body_hash = Sha256(body), reply = std::move(reply)](const Database& database) {
    const auto look_up = [&]() -> absl::StatusOr<std::optional<v1::Job>> {
      AMPD_ASSIGN_OR_RETURN(const std::optional<RequestRecord> request, database.FindRequest(request_id));
      if (!request) return std::optional<v1::Job>();
      if (request->body_hash != body_hash) return OtherBody(request_id);
      AMPD_ASSIGN_OR_RETURN(JobRecord record, database.FindJob(request->job_id));
      return std::optional<v1::Job>(std::move(record.job));
    };
    post_([this, reply, result = look_up()]() mutable {
      if (result.ok() && result->has_value()) **result = WithQueueInfo(std::move(**result));
      reply->Send(std::move(result));
    });
  });
}

void ControllerCore::InsertJob(CreateJobParams params, std::string body_hash, ReplyPtr<v1::Job> reply) {
  if (draining_->load()) return reply->Send(absl::UnavailableError("the daemon is shutting down"));
  const absl::Time now = clock_->Now();
  auto job = std::make_shared<Job>(
      Job::New(ids_.Next(now), ++last_submit_sequence_, std::move(params.spec), std::move(params.plan), now));
  JobWrite write = job->TakeWrite();
  write.request_id = params.request_id;
  write.body_hash = std::move(body_hash);
  log_->Append(std::move(write), [this, job, reply](const absl::Status& status) {
    post_([this, job, reply, status] {
      if (!status.ok()) return reply->Send(status);
      job->WriteDone(true);
      const std::string id = job->id();
      live_.emplace(id, LiveJob(std::move(*job)));
      // The answer shows the job's place in the queue, or that it starts.
      Schedule();
      Touch(*Find(id));
      GetJob(id, reply);
    });
  });
}

v1::Job ControllerCore::WithQueueInfo(v1::Job job) const {
  if (job.state() != v1::Job::QUEUED) return job;
  const auto waiting = waiting_.find(job.id());
  if (waiting == waiting_.end()) return job;
  job.set_queue_position(waiting->second.first);
  job.set_queue_reason(waiting->second.second);
  return job;
}

void ControllerCore::GetJob(const std::string& id, ReplyPtr<v1::Job> reply) {
  store_->Read([this, id, reply = std::move(reply)](const Database& database) {
    absl::StatusOr<JobRecord> record = database.FindJob(id);
    post_([this, reply, record = std::move(record)]() mutable {
      if (!record.ok()) return reply->Send(record.status());
      reply->Send(WithQueueInfo(std::move(record->job)));
    });
  });
}

void ControllerCore::ListJobs(const v1::ListJobsRequest& request, ReplyPtr<v1::ListJobsResponse> reply) {
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return reply->Send(
        absl::InvalidArgumentError(absl::StrCat("page_size: ", request.page_size(), " is not in 1..", kMaxPageSize)));
  }
  store_->Read([this, request, reply = std::move(reply)](const Database& database) {
    std::vector<v1::Job::State> states;
    for (const int state : request.states()) states.push_back(static_cast<v1::Job::State>(state));
    const int page_size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
    auto page = database.ListJobs(page_size, request.page_token(), states);
    post_([this, reply, page = std::move(page)]() mutable {
      if (!page.ok()) return reply->Send(page.status());
      v1::ListJobsResponse response;
      for (v1::Job& job : page->jobs) *response.add_jobs() = WithQueueInfo(std::move(job));
      response.set_next_page_token(page->next_page_token);
      reply->Send(std::move(response));
    });
  });
}

void ControllerCore::CancelJob(const std::string& id, ReplyPtr<v1::Job> reply) {
  auto found = std::make_shared<Reply<v1::Job>>([this, reply](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return reply->Send(job.status());
    LiveJob* live = Find(job->id());
    if (live == nullptr) return reply->Send(*std::move(job));
    CancelLive(*live);
    live->waiters.push_back([this, whole_id = job->id(), reply](const absl::Status& status) {
      if (!status.ok()) return reply->Send(status);
      GetJob(whole_id, reply);
    });
    Touch(*live);
  });
  GetJob(id, std::move(found));
}

void ControllerCore::CancelLive(LiveJob& live) {
  const v1::Job::State state = live.job.state();
  if (IsTerminal(state) || state == v1::Job::CANCELLING) return;
  if (!HoldsDevice(state)) {
    timers_.Cancel(&live.retry_timer);
    return Enter(live, v1::Job::CANCELLED, "cancelled by request");
  }
  Enter(live, v1::Job::CANCELLING, "cancelled by request");
  if (!live.launched) return WorkerGone(live);
  live.stop = Stop::kCancel;
  // A worker that never attached has nothing to save.
  if (state == v1::Job::STARTING) return Kill(live);
  AskToStop(live, Stop::kCancel);
}

}  // namespace ampd
