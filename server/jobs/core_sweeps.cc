// What clients ask of sweeps. A sweep is its jobs: nothing else of it changes.
#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/jobs/core.h"
#include "server/jobs/page_size.h"

namespace ampd {
namespace {

// Of a sweep that is answered, between which others get theirs.
constexpr int kJobsAtATime = 256;

absl::StatusOr<v1::JobSweep> ReadSweep(const Database& database, const std::string& id, const Owner& owner) {
  AMPD_ASSIGN_OR_RETURN(const SweepRecord record, database.FindSweep(id, owner));
  AMPD_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, database.SweepJobs(record));
  v1::JobSweep sweep;
  sweep.set_id(record.id);
  sweep.set_count(static_cast<int32_t>(record.jobs));
  for (v1::Job& job : jobs) sweep.add_jobs()->Swap(&job);
  return sweep;
}

absl::StatusOr<SweepQuery> QueryOf(const v1::ListSweepsRequest& request, const Owner& owner) {
  SweepQuery query;
  AMPD_ASSIGN_OR_RETURN(query.page_size, PageSizeOf(request.page_size()));
  query.page_token = request.page_token();
  if (!request.user().empty()) query.user = request.user();
  if (owner) query.user = owner;
  if (const absl::Status token = CheckPageToken(query); !token.ok()) {
    return InvalidFields({{"page_token", std::string(token.message())}});
  }
  return query;
}

}  // namespace

void ControllerCore::CreateSweep(std::vector<CreateJobParams> params, ReplyPtr<v1::JobSweep> reply) {
  if (params.empty()) return reply->Send(absl::InvalidArgumentError("a sweep without jobs"));
  const std::string sweep_id = ids_.Next(clock_->Now());
  for (CreateJobParams& one : params) one.sweep->set_sweep_id(sweep_id);
  CreateJobs(std::move(params), std::make_shared<Reply<v1::Job>>([this, reply](absl::StatusOr<v1::Job> first) {
               if (!first.ok()) return reply->Send(first.status());
               // Another's id where the request was made before.
               GetSweep(first->sweep().sweep_id(), reply);
             }));
}

void ControllerCore::GetSweep(const std::string& id, ReplyPtr<v1::JobSweep> reply, const Owner& owner) {
  large_reads_.Take(owner.value_or(""), [this, id, owner, reply = std::move(reply)](const Turns::Turn& turn) {
    store_->Read([this, id, owner, reply, turn](const Database& database) {
      absl::StatusOr<v1::JobSweep> sweep = ReadSweep(database, id, owner);
      if (!sweep.ok()) return reply->Send(sweep.status());
      AddQueueInfo(std::make_shared<v1::JobSweep>(*std::move(sweep)), 0, reply, turn);
    });
  });
}

// In parts, between which others are answered; sent on a thread of the store's, as that takes as long again.
void ControllerCore::AddQueueInfo(const std::shared_ptr<v1::JobSweep>& sweep, int begin,
                                  const ReplyPtr<v1::JobSweep>& reply, const Turns::Turn& turn) {
  post_answer_([this, sweep, begin, reply, turn] {
    const int end = std::min(begin + kJobsAtATime, sweep->jobs_size());
    for (int i = begin; i < end; ++i) *sweep->mutable_jobs(i) = WithQueueInfo(std::move(*sweep->mutable_jobs(i)));
    if (end < sweep->jobs_size()) return AddQueueInfo(sweep, end, reply, turn);
    store_->Read([sweep, reply, turn](const Database&) { reply->Send(std::move(*sweep)); });
  });
}

void ControllerCore::ListSweeps(const v1::ListSweepsRequest& request, ReplyPtr<v1::ListSweepsResponse> reply,
                                const Owner& owner) {
  absl::StatusOr<SweepQuery> query = QueryOf(request, owner);
  if (!query.ok()) return reply->Send(query.status());
  // Others' sweeps are not there.
  if (owner && !request.user().empty() && request.user() != *owner) return reply->Send(v1::ListSweepsResponse());
  store_->Read([this, query = *std::move(query), reply = std::move(reply)](const Database& database) {
    auto page = database.ListSweeps(query);
    post_([reply, page = std::move(page)]() mutable {
      if (!page.ok()) return reply->Send(page.status());
      v1::ListSweepsResponse response;
      for (v1::SweepSummary& sweep : page->sweeps) response.add_sweeps()->Swap(&sweep);
      response.set_next_page_token(page->next_page_token);
      reply->Send(std::move(response));
    });
  });
}

void ControllerCore::CancelSweep(const std::string& id, bool now, const ReplyPtr<v1::JobSweep>& reply) {
  store_->Read([this, id, now, reply](const Database& database) {
    const auto look_up = [&]() -> absl::StatusOr<std::pair<std::string, std::vector<std::string>>> {
      AMPD_ASSIGN_OR_RETURN(const SweepRecord record, database.FindSweep(id));
      AMPD_ASSIGN_OR_RETURN(std::vector<std::string> jobs, database.SweepJobIds(record));
      return std::pair(record.id, std::move(jobs));
    };
    post_([this, now, reply, found = look_up()] {
      if (!found.ok()) return reply->Send(found.status());
      CancelAll(found->first, found->second, now, reply);
    });
  });
}

void ControllerCore::CancelAll(const std::string& sweep, const std::vector<std::string>& jobs, bool now,
                               const ReplyPtr<v1::JobSweep>& reply) {
  struct Pending {
    int left = 0;
    absl::Status status;
  };
  auto pending = std::make_shared<Pending>();
  const Waiter durable = [this, pending, sweep, reply](const absl::Status& status) {
    pending->status.Update(status);
    if (--pending->left > 0) return;
    if (!pending->status.ok()) return reply->Send(pending->status);
    GetSweep(sweep, reply);
  };
  for (const std::string& id : jobs) {
    LiveJob* live = Find(id);
    if (live == nullptr) continue;
    CancelLive(*live, now);
    ++pending->left;
    live->waiters.push_back(durable);
    Touch(*live);
  }
  if (pending->left == 0) GetSweep(sweep, reply);
}

}  // namespace ampd
