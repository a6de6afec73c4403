#include "client/top/feed.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/exit_code.h"

namespace ampd::client {
namespace {

using v1::Job;

constexpr size_t kMostHistories = 16;
// How much of a job's past the curves begin with: some hundred reports.
constexpr uint64_t kPastEvents = 600;
constexpr int kMostJobs = 200;
constexpr int kEndedJobs = 20;
// A daemon that is away is to be told of soon.
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::Status AddJobs(Connection* connection, const std::vector<Job::State>& states, int most, std::vector<Job>* jobs) {
  v1::ListJobsRequest request;
  request.set_page_size(most);
  for (const Job::State state : states) request.add_states(state);
  const size_t before = jobs->size();
  // A page may have fewer than it could.
  do {
    const absl::StatusOr<v1::ListJobsResponse> response = connection->ListJobs(request, kPatience);
    if (!response.ok()) return response.status();
    jobs->insert(jobs->end(), response->jobs().begin(), response->jobs().end());
    request.set_page_token(response->next_page_token());
  } while (!request.page_token().empty() && jobs->size() < before + static_cast<size_t>(most));
  return absl::OkStatus();
}

absl::Status AddHistories(Connection* connection, TopState* state) {
  std::set<std::string> kept;
  for (const Job& job : state->jobs) {
    if (kept.size() == kMostHistories || job.state() == Job::QUEUED || job.state() == Job::PAUSED) continue;
    auto found = state->histories.find(job.id());
    // Of a job that has ended what was seen of it while it ran.
    if (IsTerminal(job.state()) && found == state->histories.end()) continue;
    kept.insert(job.id());
    TopHistory& history = state->histories[job.id()];
    const uint64_t past = job.last_sequence() > kPastEvents ? job.last_sequence() - kPastEvents : 0;
    const absl::StatusOr<std::vector<v1::JobEvent>> events =
        connection->ReadEvents(job.id(), job.last_sequence(), kPatience, std::max(past, history.sequence()));
    if (!events.ok()) return events.status();
    for (const v1::JobEvent& event : *events) history.Observe(event);
  }
  for (auto it = state->histories.begin(); it != state->histories.end();) {
    it = kept.count(it->first) > 0 ? std::next(it) : state->histories.erase(it);
  }
  return absl::OkStatus();
}

absl::Status Ask(Connection* connection, TopState* state) {
  const absl::StatusOr<v1::ServerInfo> server = connection->GetServerInfo(kPatience);
  if (!server.ok()) return server.status();
  const absl::StatusOr<v1::ListDevicesResponse> devices = connection->ListDevices(kPatience);
  if (!devices.ok()) return devices.status();
  std::vector<Job> jobs;
  absl::Status status = AddJobs(
      connection, {Job::STARTING, Job::RUNNING, Job::PREEMPTING, Job::RETRYING, Job::RECOVERING, Job::CANCELLING},
      kMostJobs, &jobs);
  if (status.ok()) status = AddJobs(connection, {Job::QUEUED, Job::PAUSED}, kMostJobs, &jobs);
  if (status.ok()) status = AddJobs(connection, {Job::SUCCEEDED, Job::FAILED, Job::CANCELLED}, kEndedJobs, &jobs);
  if (!status.ok()) return status;
  SortJobs(&jobs);
  state->server = *server;
  state->devices.assign(devices->devices().begin(), devices->devices().end());
  state->jobs = std::move(jobs);
  state->time = absl::Now();
  state->answered = true;
  return AddHistories(connection, state);
}

}  // namespace

void AskServer(Connection* connection, TopState* state) {
  state->address = connection->address();
  state->lost = Ask(connection, state);
}

TopFeed::TopFeed(Connection* connection, absl::Duration interval)
    : connection_(connection), interval_(interval), news_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { Run(); });
}

TopFeed::~TopFeed() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  close(news_);
}

void TopFeed::Hurry() {
  const MutexLock lock(&mutex_);
  hurry_ = true;
  changed_.NotifyAll();
}

std::shared_ptr<const TopState> TopFeed::state() const {
  const MutexLock lock(&mutex_);
  return state_;
}

void TopFeed::Run() {
  TopState state;
  state.time = absl::Now();
  while (true) {
    AskServer(connection_, &state);
    auto copy = std::make_shared<const TopState>(state);
    const auto next = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(interval_);
    const uint64_t one = 1;
    MutexLock lock(&mutex_);
    state_ = std::move(copy);
    // An eventfd below its limit takes a write at once.
    if (write(news_, &one, sizeof(one)) < 0) return;
    while (!stop_ && !hurry_ && changed_.WaitUntil(&mutex_, next)) {
    }
    if (stop_) return;
    hurry_ = false;
  }
}

}  // namespace ampd::client
