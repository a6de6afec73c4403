// What clients ask for. Jobs are read from the store, so that what is answered is durable: beside the writer where they
// are only shown, in its order where something is to change.
#include "absl/algorithm/container.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/jobs/core.h"
#include "server/jobs/credentials.h"
#include "server/jobs/page_size.h"

namespace ampd {
namespace {

constexpr size_t kMaxRequestId = 200;

// Of spec and plan as they are stored; in memory a job is several times as large, and answers are made faster than they
// are sent. Most have a few KiB.
constexpr int64_t kLargeJobBytes = 64 << 10;

absl::Status OtherBody(const std::string& request_id) {
  return absl::AlreadyExistsError(absl::StrCat("request_id \"", request_id, "\" was used with another body"));
}

absl::Status WrongField(const char* field, const absl::Status& status) {
  return InvalidFields({{field, std::string(status.message())}});
}

absl::StatusOr<JobQuery> QueryOf(const v1::ListJobsRequest& request, const Owner& owner) {
  JobQuery query;
  query.owner = owner;
  AMPD_ASSIGN_OR_RETURN(query.page_size, PageSizeOf(request.page_size()));
  query.page_token = request.page_token();
  for (int i = 0; i < request.states_size(); ++i) {
    const int state = request.states(i);
    if (!v1::Job::State_IsValid(state) || state == v1::Job::STATE_UNSPECIFIED) {
      return InvalidFields({{absl::StrCat("states[", i, "]"), absl::StrCat("there is no state ", state)}});
    }
    if (absl::c_linear_search(query.states, state)) continue;
    query.states.push_back(static_cast<v1::Job::State>(state));
  }
  absl::StatusOr<JobFilter> filter = ParseJobFilter(request.filter());
  if (!filter.ok()) return WrongField("filter", filter.status());
  const absl::StatusOr<JobOrder> order = ParseJobOrder(request.order_by());
  if (!order.ok()) return WrongField("order_by", order.status());
  query.filter = *std::move(filter);
  query.order = *order;
  if (const absl::Status token = CheckPageToken(query); !token.ok()) return WrongField("page_token", token);
  return query;
}

absl::Status NotTaken(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return Annotate(status, "the state directory has no room, so that nothing was queued; try again once there is some");
}

// Users choose their ids without knowing of each other.
std::string RequestKey(const std::string& user, const std::string& request_id) {
  return user.empty() || request_id.empty() ? request_id : absl::StrCat(user, "\n", request_id);
}

}  // namespace

void ControllerCore::CreateJob(CreateJobParams params, ReplyPtr<v1::Job> reply) {
  std::vector<CreateJobParams> one;
  one.push_back(std::move(params));
  CreateJobs(std::move(one), std::move(reply));
}

void ControllerCore::CreateJobs(std::vector<CreateJobParams> params, ReplyPtr<v1::Job> reply) {
  const std::string request_id = params[0].request_id;
  if (request_id.size() > kMaxRequestId) {
    return reply->Send(
        absl::InvalidArgumentError(absl::StrCat("request_id: ", request_id.size(), " bytes, at most ", kMaxRequestId)));
  }
  const std::string user = params[0].user;
  const std::string key = RequestKey(user, request_id);
  const std::string body_hash = Sha256(params[0].body);
  if (request_id.empty()) return InsertJobs(std::move(params), body_hash, std::move(reply));
  const auto under_way = creating_.find(key);
  if (under_way != creating_.end()) {
    if (under_way->second.body_hash != body_hash) return reply->Send(OtherBody(request_id));
    under_way->second.replies.push_back(std::move(reply));
    return;
  }
  creating_[key] = {body_hash, {std::move(reply)}};
  InsertJobs(
      std::move(params), body_hash,
      std::make_shared<Reply<v1::Job>>([this, key, user, request_id, body_hash](absl::StatusOr<v1::Job> created) {
        // Whoever repeats a request that was answered is told of its job, whatever would keep it out by now.
        if (created.ok() || absl::IsCancelled(created.status())) return AnswerRequest(key, std::move(created));
        FindRequestOf(user, request_id, body_hash, AnswerOr(key, created.status()));
      }));
}

ReplyPtr<std::optional<v1::Job>> ControllerCore::AnswerOr(const std::string& key, const absl::Status& refusal) {
  return std::make_shared<Reply<std::optional<v1::Job>>>(
      [this, key, refusal](absl::StatusOr<std::optional<v1::Job>> found) {
        absl::StatusOr<v1::Job> answer = refusal;
        if (!found.ok()) answer = found.status();
        if (found.ok() && *found) answer = **std::move(found);
        post_([this, key, answer = std::move(answer)]() mutable { AnswerRequest(key, std::move(answer)); });
      });
}

void ControllerCore::AnswerRequest(const std::string& request_id, absl::StatusOr<v1::Job> job) {
  const auto node = creating_.extract(request_id);
  if (node.empty()) return;
  const std::vector<ReplyPtr<v1::Job>>& replies = node.mapped().replies;
  for (size_t i = 0; i + 1 < replies.size(); ++i) replies[i]->Send(job);
  replies.back()->Send(std::move(job));
}

void ControllerCore::FindRequest(const std::string& user, const std::string& request_id, const std::string& body,
                                 ReplyPtr<std::optional<v1::Job>> reply) {
  FindRequestOf(user, request_id, Sha256(body), std::move(reply));
}

void ControllerCore::FindRequestOf(const std::string& user, const std::string& request_id, const std::string& body_hash,
                                   ReplyPtr<std::optional<v1::Job>> reply) {
  store_->Read([this, user, request_id, body_hash, reply = std::move(reply)](const Database& database) {
    const auto look_up = [&]() -> absl::StatusOr<std::optional<v1::Job>> {
      AMPD_ASSIGN_OR_RETURN(const std::optional<RequestRecord> request,
                            database.FindRequest(RequestKey(user, request_id)));
      if (!request) return std::optional<v1::Job>();
      if (request->body_hash != body_hash) return OtherBody(request_id);
      AMPD_ASSIGN_OR_RETURN(JobRecord record, database.FindJob(request->job_id));
      // Of a time when users were not told apart and ids could be anything.
      if (record.job.user() != user) return OtherBody(request_id);
      return std::optional<v1::Job>(std::move(record.job));
    };
    absl::StatusOr<std::optional<v1::Job>> result = look_up();
    if (!result.ok() || !result->has_value()) return reply->Send(std::move(result));
    post_answer_([this, reply, job = std::move(**result)]() mutable { reply->Send(WithQueueInfo(std::move(job))); });
  });
}

absl::StatusOr<std::shared_ptr<Job>> ControllerCore::NewJob(CreateJobParams params, absl::Time now) {
  auto job = std::make_shared<Job>(
      Job::New(ids_.Next(now), ++last_submit_sequence_, std::move(params.spec), std::move(params.plan), now));
  if (!params.user.empty()) job->MutableRecord().job.set_user(params.user);
  if (!params.datasets.empty()) job->MutableRecord().datasets = std::move(params.datasets);
  if (params.sweep) *job->MutableRecord().job.mutable_sweep() = *std::move(params.sweep);
  if (params.start != nullptr) AMPD_RETURN_IF_ERROR(params.start->GiveTo(job->id()));
  return job;
}

void ControllerCore::InsertJobs(std::vector<CreateJobParams> params, std::string body_hash, ReplyPtr<v1::Job> reply) {
  if (draining_->load()) return reply->Send(absl::UnavailableError("the daemon is shutting down"));
  const std::string user = params[0].user;
  if (const absl::Status quota = CheckQueueQuota(user, static_cast<int>(params.size())); !quota.ok()) {
    return reply->Send(quota);
  }
  const absl::Time now = clock_->Now();
  const std::string request_key = RequestKey(user, params[0].request_id);
  const bool has_start = absl::c_any_of(params, [](const CreateJobParams& one) { return one.start != nullptr; });
  std::vector<std::shared_ptr<Job>> jobs;
  std::vector<JobWrite> writes;
  for (CreateJobParams& one : params) {
    absl::StatusOr<std::shared_ptr<Job>> job = NewJob(std::move(one), now);
    if (!job.ok()) return JobsInserted(std::move(jobs), job.status(), reply);
    writes.push_back((*job)->TakeWrite());
    jobs.push_back(*std::move(job));
  }
  if (has_start) {
    if (const absl::Status synced = starts_.Sync(); !synced.ok()) return JobsInserted(std::move(jobs), synced, reply);
  }
  writes[0].request_id = request_key;
  writes[0].body_hash = std::move(body_hash);
  writes[0].sweep_id = jobs[0]->proto().sweep().sweep_id();
  writes[0].sweep_jobs = static_cast<int64_t>(jobs.size());
  inserting_[user] += static_cast<int64_t>(jobs.size());
  log_->AppendAll(std::move(writes), [this, jobs, user, reply](const absl::Status& status) {
    post_([this, jobs, user, reply, status] {
      for (size_t i = 0; i < jobs.size(); ++i) Inserted(user);
      JobsInserted(jobs, status, reply);
    });
  });
}

void ControllerCore::JobsInserted(std::vector<std::shared_ptr<Job>> jobs, const absl::Status& status,
                                  const ReplyPtr<v1::Job>& reply) {
  if (!status.ok()) {
    for (const std::shared_ptr<Job>& job : jobs) starts_.Release(job->id());
    return reply->Send(NotTaken(status));
  }
  v1::Job first = jobs[0]->proto();
  // Points of a sweep name the same ones.
  std::set<std::string> ended;
  for (const std::shared_ptr<Job>& job : jobs) {
    job->WriteDone(true);
    const std::string id = job->id();
    LiveJob& live = live_.emplace(id, LiveJob(std::move(*job))).first->second;
    NoteDatasets(live);
    ended.merge(AddDependencies(live));
    Touch(live);
  }
  LookUpDependencies(ended);
  // The answer shows the job's place in the queue, unless it starts: after a round for all that were inserted.
  needs_schedule_ = true;
  inserted_.emplace_back(std::move(first), reply);
}

void ControllerCore::AnswerInserted() {
  for (auto& [job, reply] : std::exchange(inserted_, {})) reply->Send(WithQueueInfo(std::move(job)));
}

void ControllerCore::GetJob(const std::string& id, ReplyPtr<v1::Job> reply, const Owner& owner) {
  store_->Read([this, id, owner, reply = std::move(reply)](const Database& database) {
    const absl::StatusOr<JobLocation> found = database.LocateJob(id, owner);
    if (!found.ok()) return reply->Send(found.status());
    if (found->bytes <= kLargeJobBytes) return ReadJob(database, found->sequence, reply, nullptr);
    large_reads_.Take(owner.value_or(""), [this, sequence = found->sequence, reply](const Turns::Turn& turn) {
      store_->Read([this, sequence, reply, turn](const Database& in_turn) { ReadJob(in_turn, sequence, reply, turn); });
    });
  });
}

void ControllerCore::ReadJob(const Database& database, int64_t sequence, const ReplyPtr<v1::Job>& reply,
                             const Turns::Turn& turn) {
  absl::StatusOr<JobRecord> record = database.RecordOf(sequence);
  if (!record.ok()) return reply->Send(record.status());
  if (record->job.state() != v1::Job::QUEUED) return reply->Send(std::move(record->job));
  post_answer_([this, reply, turn, job = std::move(record->job)]() mutable {
    job = WithQueueInfo(std::move(job));
    if (turn == nullptr) return reply->Send(std::move(job));
    // Sending it takes as long as reading it.
    store_->Read([reply, turn, job = std::move(job)](const Database&) mutable { reply->Send(std::move(job)); });
  });
}

void ControllerCore::FindToChange(const std::string& id, ReplyPtr<v1::Job> reply) {
  if (const LiveJob* live = Find(id)) return reply->Send(live->job.proto());
  store_->ReadInOrder([this, id, reply = std::move(reply)](const Database& database) {
    post_([reply, record = database.FindJob(id)]() mutable {
      if (!record.ok()) return reply->Send(record.status());
      reply->Send(std::move(record->job));
    });
  });
}

void ControllerCore::ListJobs(const v1::ListJobsRequest& request, ReplyPtr<v1::ListJobsResponse> reply,
                              const Owner& owner) {
  absl::StatusOr<JobQuery> query = QueryOf(request, owner);
  if (!query.ok()) return reply->Send(query.status());
  store_->Read([this, query = *std::move(query), reply = std::move(reply)](const Database& database) {
    auto page = database.ListJobs(query);
    post_answer_([this, reply, page = std::move(page)]() mutable {
      if (!page.ok()) return reply->Send(page.status());
      v1::ListJobsResponse response;
      for (v1::Job& job : page->jobs) *response.add_jobs() = WithQueueInfo(std::move(job));
      response.set_next_page_token(page->next_page_token);
      reply->Send(std::move(response));
    });
  });
}

void ControllerCore::CancelJob(const std::string& id, bool now, ReplyPtr<v1::Job> reply) {
  auto found = std::make_shared<Reply<v1::Job>>([this, now, reply](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return reply->Send(job.status());
    LiveJob* live = Find(job->id());
    if (live == nullptr) return reply->Send(*std::move(job));
    CancelLive(*live, now);
    live->waiters.push_back([this, whole_id = job->id(), reply](const absl::Status& status) {
      if (!status.ok()) return reply->Send(status);
      GetJob(whole_id, reply);
    });
    Touch(*live);
  });
  FindToChange(id, std::move(found));
}

void ControllerCore::CancelLive(LiveJob& live, bool now) {
  const v1::Job::State state = live.job.state();
  if (IsTerminal(state)) return;
  if (state != v1::Job::CANCELLING && !HoldsDevice(state)) {
    timers_.Cancel(&live.retry_timer);
    return Enter(live, v1::Job::CANCELLED, CancelReason(live));
  }
  if (now) live.job.MutableRecord().cancel_now = true;
  if (state == v1::Job::CANCELLING) return now ? Kill(live) : void();
  Enter(live, v1::Job::CANCELLING, CancelReason(live));
  if (!live.launched) return WorkerGone(live);
  live.stop = Stop::kCancel;
  // A worker that never attached has nothing to save.
  if (now || state == v1::Job::STARTING) return Kill(live);
  AskToStop(live, Stop::kCancel);
}

std::string ControllerCore::CancelReason(const LiveJob& live) {
  return live.job.record().cancel_now ? "cancelled by request, at once" : "cancelled by request";
}

}  // namespace ampd
