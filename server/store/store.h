// The threads that own the database. One writes: writes are queued and committed in groups, so that an fsync serves
// every write that waits for it. Others read beside it and never wait for a commit.
#ifndef AMPD_SERVER_STORE_STORE_H_
#define AMPD_SERVER_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/store/database.h"
#include "server/store/records.h"

namespace ampd {

// Thread-safe.
class Store {
 public:
  struct Options {
    // Created when missing.
    std::string state_dir;
    // Largest number of writes in one transaction, >= 1.
    size_t max_group = 512;
    // Told after each commit: its duration in seconds and its writes. Runs on the writer's thread.
    std::function<void(double seconds, size_t writes)> on_commit;
    // Bound on the database file, 4096-byte pages; 0 is none.
    int64_t max_pages = 0;
    // As of Database::Open; may run on the store's threads.
    Database::Log log = nullptr;
    // Threads that read, each with a connection of its own, >= 1.
    int readers = 2;
  };

  // Errors as Database::Open.
  static absl::StatusOr<std::unique_ptr<Store>> Open(Options options);

  // Completes every queued operation, then closes the database.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  using Done = std::function<void(const absl::Status&)>;
  // Queues `write`. `done` runs on the writer's thread once the write is durable, or with the error that kept it out;
  // writes are applied in the order of the calls. One write's failure leaves the others of its group unharmed.
  // `done` must neither block nor wait for a read.
  void Write(JobWrite write, Done done);
  // As Write, of several as one: all become durable or none.
  void WriteAll(std::shared_ptr<const std::vector<JobWrite>> writes, Done done);

  // Runs `change` on the writer's thread, after every write queued before it, in a transaction of its own, which an
  // error takes back. `done` as of Write. For upkeep: while it runs nothing else is written.
  void Change(std::function<absl::Status(Database&)> change, Done done);

  // Runs `read` on a reader's thread, of one moment of the database: it sees every write whose `done` was called before
  // this call, and none whose `done` has not returned when `read` begins. So what is read is durable, whoever was told
  // of a write reads it, and nobody reads one that its writer was not told of. Reads are begun in the order of the
  // calls and end in any. `read` must not block for long: it keeps a reader from others and, when the log of the
  // database has grown long, all of them.
  void Read(std::function<void(const Database&)> read);

  // Runs `read` on the writer's thread, after every write queued before it and before every later one. For what decides
  // on a write: nothing changes between the read and a write that is queued by `read`. It waits for commits.
  void ReadInOrder(std::function<void(const Database&)> read);

  // As Read, and waits for the result of `read`. Not for use on the store's own threads.
  template <typename F>
  auto Await(F read) -> decltype(read(std::declval<const Database&>())) {
    std::promise<decltype(read(std::declval<const Database&>()))> promise;
    auto future = promise.get_future();
    Read([&promise, &read](const Database& database) { promise.set_value(read(database)); });
    return future.get();
  }

  // As Database::DamagedPages.
  int64_t DamagedPages() const { return database_->DamagedPages(); }

  // Waits until everything that was queued before the call is done with. Not for use on the store's own threads.
  void Flush();

 private:
  struct Operation {
    // With neither function this is a write.
    std::function<void(const Database&)> read;
    std::function<absl::Status(Database&)> change;
    // Of a write alone.
    std::shared_ptr<const std::vector<JobWrite>> writes;
    Done done;

    bool is_write() const { return read == nullptr && change == nullptr; }
  };
  Store(Options options, std::unique_ptr<Database> database, std::vector<std::unique_ptr<Database>> readers,
        uint32_t commit_number);
  void Queue(Operation operation);
  void Run();
  std::deque<Operation> Take();
  void CommitGroup(std::deque<Operation>& group);
  void RunChange(Operation& operation);
  absl::Status ApplyAll(const std::deque<Operation>& group);
  absl::Status CommitNumbered();
  void Publish();
  // After a commit: when the log is long, lets no read begin until it was copied in a moment without any.
  void BoundLog();
  // In that moment.
  void CutLog();
  // The next read, or nothing when the store is to stop.
  std::function<void(const Database&)> TakeRead();
  void RunReads(const Database& database);
  void EndRead();
  void AwaitPublished(uint32_t number);

  const Options options_;
  // Used by the writer's thread alone.
  const std::unique_ptr<Database> database_;
  // Each used by one reader's thread alone.
  const std::vector<std::unique_ptr<Database>> readers_;
  // Of the last commit. Used by the writer's thread alone.
  uint32_t commit_number_;
  // Pages of the log with which it is next to be cut. Likewise.
  int64_t cut_at_;

  Mutex mutex_;
  CondVar wake_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex read_mutex_;
  CondVar read_wake_;
  CondVar reads_done_;
  std::deque<std::function<void(const Database&)>> reads_ ABSL_GUARDED_BY(read_mutex_);
  // Under way.
  int reading_ ABSL_GUARDED_BY(read_mutex_) = 0;
  bool reads_stopping_ ABSL_GUARDED_BY(read_mutex_) = false;
  // The log is to be cut: no read begins.
  bool cutting_ ABSL_GUARDED_BY(read_mutex_) = false;

  Mutex published_mutex_;
  CondVar published_changed_;
  // The last commit whose writers were told.
  uint32_t published_ ABSL_GUARDED_BY(published_mutex_);

  std::thread thread_;
  // Only for the constructor and the destructor.
  std::vector<std::thread> read_threads_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_STORE_H_
