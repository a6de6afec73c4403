#include "server/store/store.h"

#include <chrono>

#include "engine/core/status.h"

namespace ampd {
namespace {

// 8 MiB. Commits copy the log from Database::kLogPages on, and most of the time it then begins anew by itself.
constexpr int64_t kLongLogPages = 2048;

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(Options options) {
  AMPD_ASSIGN_OR_RETURN(auto database, Database::Open(options.state_dir, options.max_pages, options.log));
  AMPD_ASSIGN_OR_RETURN(const uint32_t commit_number, database->CommitNumber());
  std::vector<std::unique_ptr<Database>> readers;
  for (int i = 0; i < options.readers; ++i) {
    AMPD_ASSIGN_OR_RETURN(readers.emplace_back(), Database::OpenReader(*database));
  }
  return std::unique_ptr<Store>(new Store(std::move(options), std::move(database), std::move(readers), commit_number));
}

Store::Store(Options options, std::unique_ptr<Database> database, std::vector<std::unique_ptr<Database>> readers,
             uint32_t commit_number)
    : options_(std::move(options)),
      database_(std::move(database)),
      readers_(std::move(readers)),
      commit_number_(commit_number),
      cut_at_(kLongLogPages),
      published_(commit_number),
      thread_([this] { Run(); }) {
  for (const auto& reader : readers_) read_threads_.emplace_back([this, &reader] { RunReads(*reader); });
}

Store::~Store() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
  {
    const MutexLock lock(&read_mutex_);
    reads_stopping_ = true;
  }
  read_wake_.NotifyAll();
  for (std::thread& reader : read_threads_) reader.join();
}

void Store::Queue(Operation operation) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back(std::move(operation));
  }
  wake_.NotifyOne();
}

void Store::Write(JobWrite write, Done done) {
  std::vector<JobWrite> writes;
  writes.push_back(std::move(write));
  WriteAll(std::make_shared<const std::vector<JobWrite>>(std::move(writes)), std::move(done));
}

void Store::WriteAll(std::shared_ptr<const std::vector<JobWrite>> writes, Done done) {
  Queue({nullptr, nullptr, std::move(writes), std::move(done)});
}

void Store::ReadInOrder(std::function<void(const Database&)> read) {
  Queue({std::move(read), nullptr, nullptr, nullptr});
}

void Store::Change(std::function<absl::Status(Database&)> change, Done done) {
  Queue({nullptr, std::move(change), nullptr, std::move(done)});
}

void Store::Read(std::function<void(const Database&)> read) {
  {
    const MutexLock lock(&read_mutex_);
    reads_.push_back(std::move(read));
  }
  read_wake_.NotifyOne();
}

void Store::Flush() {
  std::promise<void> written;
  ReadInOrder([&written](const Database&) { written.set_value(); });
  written.get_future().wait();
  MutexLock lock(&read_mutex_);
  while (!reads_.empty() || reading_ > 0) reads_done_.Wait(&read_mutex_);
}

std::function<void(const Database&)> Store::TakeRead() {
  MutexLock lock(&read_mutex_);
  // At the end nobody is left to cut the log, and it needs no cutting.
  while (!reads_stopping_ && (reads_.empty() || cutting_)) read_wake_.Wait(&read_mutex_);
  if (reads_.empty()) return nullptr;
  std::function<void(const Database&)> read = std::move(reads_.front());
  reads_.pop_front();
  ++reading_;
  return read;
}

void Store::RunReads(const Database& database) {
  for (auto read = TakeRead(); read != nullptr; read = TakeRead()) {
    const absl::StatusOr<uint32_t> number = database.BeginRead();
    // Without a number the read fails by itself, and says why.
    if (number.ok()) AwaitPublished(*number);
    read(database);
    database.EndRead();
    read = nullptr;
    EndRead();
  }
}

void Store::EndRead() {
  bool cut;
  {
    const MutexLock lock(&read_mutex_);
    if (--reading_ > 0) return;
    reads_done_.NotifyAll();
    cut = cutting_;
  }
  if (cut) ReadInOrder([this](const Database&) { CutLog(); });
}

// Readers that follow one another without a gap would keep the log from ever beginning anew: it would grow until they
// pause. A writer that waited for a gap would let everyone wait who writes; so the readers make one.
void Store::BoundLog() {
  const int64_t pages = database_->LogPages();
  if (pages < kLongLogPages) cut_at_ = kLongLogPages;
  if (pages < cut_at_) return;
  // Another program may read from the log too: it is not tried at every commit then.
  cut_at_ = pages + kLongLogPages;
  {
    const MutexLock lock(&read_mutex_);
    if (cutting_) return;
    cutting_ = true;
    if (reading_ > 0) return;
  }
  CutLog();
}

void Store::CutLog() {
  database_->CopyLog();
  {
    const MutexLock lock(&read_mutex_);
    cutting_ = false;
  }
  read_wake_.NotifyAll();
}

// A commit can be seen before its writers are told. They are told at once.
void Store::AwaitPublished(uint32_t number) {
  MutexLock lock(&published_mutex_);
  // The numbers go round.
  while (static_cast<int32_t>(published_ - number) < 0) published_changed_.Wait(&published_mutex_);
}

void Store::Publish() {
  {
    const MutexLock lock(&published_mutex_);
    published_ = commit_number_;
  }
  published_changed_.NotifyAll();
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

absl::Status Store::CommitNumbered() {
  AMPD_RETURN_IF_ERROR(database_->SetCommitNumber(commit_number_ + 1));
  AMPD_RETURN_IF_ERROR(database_->Commit());
  ++commit_number_;
  return absl::OkStatus();
}

void Store::RunChange(Operation& operation) {
  absl::Status status = database_->Begin();
  if (status.ok()) status = operation.change(*database_);
  if (status.ok()) status = CommitNumbered();
  if (!status.ok()) database_->Rollback();
  if (operation.done) operation.done(status);
  Publish();
  BoundLog();
}

absl::Status Store::ApplyAll(const std::deque<Operation>& group) {
  AMPD_RETURN_IF_ERROR(database_->Begin());
  for (const Operation& operation : group) {
    for (const JobWrite& write : *operation.writes) AMPD_RETURN_IF_ERROR(database_->Apply(write));
  }
  return CommitNumbered();
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
  Publish();
  BoundLog();
}

}  // namespace ampd
