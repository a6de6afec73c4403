#include "server/store/store.h"

#include <chrono>

#include "engine/core/status.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<Store>> Store::Open(Options options) {
  AMPD_ASSIGN_OR_RETURN(auto database, Database::Open(options.state_dir, options.max_pages));
  return std::unique_ptr<Store>(new Store(std::move(options), std::move(database)));
}

Store::Store(Options options, std::unique_ptr<Database> database)
    : options_(std::move(options)), database_(std::move(database)), thread_([this] { Run(); }) {}

Store::~Store() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void Store::Write(JobWrite write, Done done) {
  std::vector<JobWrite> writes;
  writes.push_back(std::move(write));
  WriteAll(std::move(writes), std::move(done));
}

void Store::WriteAll(std::vector<JobWrite> writes, Done done) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back({nullptr, nullptr, std::move(writes), std::move(done)});
  }
  wake_.NotifyOne();
}

void Store::Read(std::function<void(const Database&)> read) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back({std::move(read), nullptr, {}, nullptr});
  }
  wake_.NotifyOne();
}

void Store::Change(std::function<absl::Status(Database&)> change, Done done) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back({nullptr, std::move(change), {}, std::move(done)});
  }
  wake_.NotifyOne();
}

// One read or change, or a run of writes; empty when the store is to stop.
std::deque<Store::Operation> Store::Take() {
  MutexLock lock(&mutex_);
  while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
  std::deque<Operation> group;
  while (!queue_.empty() && group.size() < options_.max_group) {
    const bool alone = !queue_.front().is_write();
    if (alone && !group.empty()) break;
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
    if (alone) break;
  }
  return group;
}

void Store::Run() {
  for (auto group = Take(); !group.empty(); group = Take()) {
    if (group.front().read) {
      group.front().read(*database_);
    } else if (group.front().change) {
      RunChange(group.front());
    } else {
      CommitGroup(group);
    }
  }
}

void Store::RunChange(Operation& operation) {
  absl::Status status = database_->Begin();
  if (status.ok()) status = operation.change(*database_);
  if (status.ok()) status = database_->Commit();
  if (!status.ok()) database_->Rollback();
  if (operation.done) operation.done(status);
}

absl::Status Store::ApplyAll(const std::deque<Operation>& group) {
  AMPD_RETURN_IF_ERROR(database_->Begin());
  for (const Operation& operation : group) {
    for (const JobWrite& write : operation.writes) AMPD_RETURN_IF_ERROR(database_->Apply(write));
  }
  return database_->Commit();
}

void Store::CommitGroup(std::deque<Operation>& group) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = ApplyAll(group);
  if (!status.ok()) database_->Rollback();
  if (!status.ok() && group.size() > 1) {
    // Alone, each write that can be made is made, and the others learn their own error.
    for (Operation& operation : group) {
      std::deque<Operation> single;
      single.push_back(std::move(operation));
      CommitGroup(single);
    }
    return;
  }
  if (status.ok() && options_.on_commit) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    options_.on_commit(elapsed.count(), group.size());
  }
  for (Operation& operation : group) {
    if (operation.done) operation.done(status);
  }
}

}  // namespace ampd
