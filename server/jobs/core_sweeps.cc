// What clients ask of sweeps. A sweep is its jobs: nothing else of it changes.
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/jobs/core.h"
#include "server/jobs/page_size.h"

namespace ampd {
namespace {

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
  store_->Read([this, id, owner, reply = std::move(reply)](const Database& database) {
    const auto look_up = [&]() -> absl::StatusOr<v1::JobSweep> {
      AMPD_ASSIGN_OR_RETURN(const SweepRecord record, database.FindSweep(id, owner));
      AMPD_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, database.SweepJobs(record));
      v1::JobSweep sweep;
      sweep.set_id(record.id);
      sweep.set_count(static_cast<int32_t>(record.jobs));
      for (v1::Job& job : jobs) sweep.add_jobs()->Swap(&job);
      return sweep;
    };
    post_([this, reply, sweep = look_up()]() mutable {
      if (!sweep.ok()) return reply->Send(sweep.status());
      for (v1::Job& job : *sweep->mutable_jobs()) job = WithQueueInfo(std::move(job));
      reply->Send(std::move(sweep));
    });
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

void ControllerCore::CancelSweep(const std::string& id, bool now, ReplyPtr<v1::JobSweep> reply) {
  GetSweep(id, std::make_shared<Reply<v1::JobSweep>>([this, now, reply](absl::StatusOr<v1::JobSweep> sweep) {
             if (!sweep.ok()) return reply->Send(sweep.status());
             CancelAll(*sweep, now, reply);
           }));
}

void ControllerCore::CancelAll(const v1::JobSweep& sweep, bool now, ReplyPtr<v1::JobSweep> reply) {
  struct Pending {
    int left = 0;
    absl::Status status;
  };
  auto pending = std::make_shared<Pending>();
  const Waiter durable = [this, pending, id = sweep.id(), reply](const absl::Status& status) {
    pending->status.Update(status);
    if (--pending->left > 0) return;
    if (!pending->status.ok()) return reply->Send(pending->status);
    GetSweep(id, reply);
  };
  for (const v1::Job& job : sweep.jobs()) {
    LiveJob* live = Find(job.id());
    if (live == nullptr) continue;
    CancelLive(*live, now);
    ++pending->left;
    live->waiters.push_back(durable);
    Touch(*live);
  }
  if (pending->left == 0) GetSweep(sweep.id(), std::move(reply));
}

}  // namespace ampd
