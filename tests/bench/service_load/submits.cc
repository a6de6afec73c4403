#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "tests/bench/service_load/pages.h"
#include "tests/bench/service_load/parts.h"
#include "tests/bench/service_load/synthetic_worker.h"

namespace ampd::load {
namespace {

// Jobs in the queue that counts as short.
constexpr int kShortQueue = 2 * kPage;

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// Keeps a number of CreateJob calls under way, on a few connections, until all jobs are acknowledged.
class Submitter {
 public:
  Submitter(const LoadDaemon& daemon, int jobs, int concurrency) : left_(jobs), running_(concurrency) {
    for (int i = 0; i < kConnections; ++i) stubs_.push_back(v1::TrainingService::NewStub(daemon.NewChannel()));
    *request_.mutable_spec() = JobNamed(kIdleJob);
    run_ = absl::StrCat(absl::ToUnixNanos(absl::Now()));
    for (int i = 0; i < concurrency; ++i) Next(i);
  }

  // Ids of what was acknowledged; the first error.
  absl::StatusOr<std::vector<std::string>> Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return running_ == 0; });
    AMPD_RETURN_IF_ERROR(status_);
    return std::move(ids_);
  }

 private:
  static constexpr int kConnections = 4;
  struct Call {
    grpc::ClientContext context;
    v1::CreateJobRequest request;
    v1::Job job;
  };

  void Next(int lane) {
    auto call = std::make_shared<Call>();
    {
      const std::lock_guard lock(mutex_);
      if (left_ == 0 || !status_.ok()) {
        --running_;
        ended_.notify_all();
        return;
      }
      --left_;
      call->request = request_;
      call->request.set_request_id(absl::StrCat(run_, "-", left_));
      call->request.mutable_spec()->set_seed(static_cast<uint64_t>(left_));
    }
    stubs_[static_cast<size_t>(lane % kConnections)]->async()->CreateJob(
        &call->context, &call->request, &call->job, [this, call, lane](const grpc::Status& status) mutable {
          {
            const std::lock_guard lock(mutex_);
            if (status.ok()) ids_.push_back(call->job.id());
            if (!status.ok()) status_.Update(ToAbsl(status));
          }
          // Its context refers to the channel, whose last reference gRPC does not bear to lose in a callback: before
          // Wait() can return and drop the stubs.
          call.reset();
          Next(lane);
        });
  }

  std::vector<std::unique_ptr<v1::TrainingService::Stub>> stubs_;
  v1::CreateJobRequest request_;
  std::string run_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int left_;
  int running_;
  absl::Status status_;
  std::vector<std::string> ids_;
};

// Asks for one job a hundred times a second, on a connection of its own.
class Prober {
 public:
  Prober(const LoadDaemon& daemon, std::string id)
      : stub_(v1::TrainingService::NewStub(daemon.NewChannel())), id_(std::move(id)), thread_([this] { Run(); }) {}

  // Seconds of each answer.
  std::vector<double> Stop() {
    stopping_ = true;
    thread_.join();
    return std::move(seconds_);
  }

 private:
  void Run() {
    v1::GetJobRequest request;
    request.set_job_id(id_);
    while (!stopping_) {
      grpc::ClientContext context;
      v1::Job job;
      const absl::Time start = absl::Now();
      const bool ok = stub_->GetJob(&context, request, &job).ok();
      // An error counts as an answer that never came.
      seconds_.push_back(ok ? absl::ToDoubleSeconds(absl::Now() - start) : 1e9);
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  const std::unique_ptr<v1::TrainingService::Stub> stub_;
  const std::string id_;
  std::atomic<bool> stopping_ = false;
  std::vector<double> seconds_;
  std::thread thread_;
};

// How many of `ids` the daemon does not have.
absl::StatusOr<int64_t> Missing(LoadDaemon* daemon, const std::vector<std::string>& ids) {
  std::set<std::string> missing(ids.begin(), ids.end());
  std::string token;
  do {
    AMPD_ASSIGN_OR_RETURN(const v1::ListJobsResponse page, ListPage(daemon, 1000, token));
    for (const v1::Job& job : page.jobs()) missing.erase(job.id());
    token = page.next_page_token();
  } while (!token.empty());
  return static_cast<int64_t>(missing.size());
}

}  // namespace

absl::Status MeasurePages(int jobs, double short_page, LoadDaemon* daemon, Figures* figures) {
  AMPD_ASSIGN_OR_RETURN(const std::string middle, TokenBehind(daemon, jobs / 2));
  AMPD_ASSIGN_OR_RETURN(const double newest_page, PageTime(daemon));
  AMPD_ASSIGN_OR_RETURN(const double middle_page, PageTime(daemon, middle));
  const std::string of = absl::StrCat("page of ", kPage, " jobs, ", jobs, " jobs there");
  figures->Note(absl::StrCat(of, ", the newest"), 1e3 * newest_page, "ms");
  figures->Note(absl::StrCat(of, ", in their middle"), 1e3 * middle_page, "ms");
  figures->Below(absl::StrCat("page time with ", jobs, " jobs over that with ", kShortQueue),
                 std::max(newest_page, middle_page) / short_page, 1.5, "");
  return absl::OkStatus();
}

absl::Status MeasureSubmits(const Sizes& sizes, const DaemonOptions& options, std::unique_ptr<LoadDaemon>* daemon,
                            double* short_page, Figures* figures) {
  // All are of one plan, as the points of a sweep are.
  AMPD_ASSIGN_OR_RETURN(std::vector<std::string> ids, Submitter(**daemon, kShortQueue, 8).Wait());
  AMPD_ASSIGN_OR_RETURN(*short_page, PageTime(daemon->get()));
  Prober prober(**daemon, ids[ids.size() / 2]);
  const absl::Time start = absl::Now();
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> more, Submitter(**daemon, sizes.jobs, sizes.concurrency).Wait());
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const std::vector<double> answers = prober.Stop();
  figures->AtLeast(absl::StrCat("jobs accepted a second, ", sizes.jobs, " of them"), sizes.jobs / seconds, 1000, "/s");
  figures->Below("GetJob meanwhile, p99", 1e3 * Quantile(answers, 0.99), 5, "ms");
  figures->Note("GetJob meanwhile, p50", 1e3 * Quantile(answers, 0.5), "ms");
  figures->Note("GetJob meanwhile, answers", static_cast<double>(answers.size()), "");
  figures->Note(absl::StrCat("page of ", kPage, " jobs, queue of ", kShortQueue), 1e3 * *short_page, "ms");
  AMPD_RETURN_IF_ERROR(MeasurePages(kShortQueue + sizes.jobs, *short_page, daemon->get(), figures));
  figures->Below("resident memory after the submits", static_cast<double>((*daemon)->PeakResidentBytes()) / 1e6, 300,
                 "MB");
  ids.insert(ids.end(), more.begin(), more.end());
  (*daemon)->Kill();
  daemon->reset();
  AMPD_ASSIGN_OR_RETURN(*daemon, LoadDaemon::Start(options));
  AMPD_ASSIGN_OR_RETURN(const int64_t missing, Missing(daemon->get(), ids));
  figures->Below("acknowledged jobs lost by kill -9", static_cast<double>(missing), 1, "");
  figures->Note(absl::StrCat("start with ", ids.size(), " queued jobs"), absl::ToDoubleSeconds((*daemon)->start_time()),
                "s");
  return absl::OkStatus();
}

}  // namespace ampd::load
