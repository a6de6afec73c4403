// The one thread that owns the database. Writes are queued and committed in groups: an fsync serves every write that
// waits for it.
#ifndef AMPD_SERVER_STORE_STORE_H_
#define AMPD_SERVER_STORE_STORE_H_

#include <cstddef>
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
    // Told after each commit: its duration in seconds and its writes. Runs on the store's thread.
    std::function<void(double seconds, size_t writes)> on_commit;
    // Bound on the database file, 4096-byte pages; 0 is none.
    int64_t max_pages = 0;
  };

  // Errors as Database::Open.
  static absl::StatusOr<std::unique_ptr<Store>> Open(Options options);

  // Completes every queued operation, then closes the database.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  using Done = std::function<void(const absl::Status&)>;
  // Queues `write`. `done` runs on the store's thread once the write is durable, or with the error that kept it out;
  // writes are applied in the order of the calls. One write's failure leaves the others of its group unharmed.
  // `done` must not block.
  void Write(JobWrite write, Done done);
  // As Write, of several as one: all become durable or none.
  void WriteAll(std::vector<JobWrite> writes, Done done);

  // Runs `change` on the store's thread, after every write queued before it, in a transaction of its own, which an
  // error takes back. `done` as of Write. For upkeep: while it runs nothing else is written or read.
  void Change(std::function<absl::Status(Database&)> change, Done done);

  // Runs `read` on the store's thread, after every write queued before it. It sees durable data only.
  void Read(std::function<void(const Database&)> read);

  // As Read, and waits for the result of `read`. Not for use on the store's own thread.
  template <typename F>
  auto Await(F read) -> decltype(read(std::declval<const Database&>())) {
    std::promise<decltype(read(std::declval<const Database&>()))> promise;
    auto future = promise.get_future();
    Read([&promise, &read](const Database& database) { promise.set_value(read(database)); });
    return future.get();
  }

 private:
  struct Operation {
    // With neither function this is a write.
    std::function<void(const Database&)> read;
    std::function<absl::Status(Database&)> change;
    std::vector<JobWrite> writes;
    Done done;

    bool is_write() const { return read == nullptr && change == nullptr; }
  };

  Store(Options options, std::unique_ptr<Database> database);
  void Run();
  std::deque<Operation> Take();
  void CommitGroup(std::deque<Operation>& group);
  void RunChange(Operation& operation);
  absl::Status ApplyAll(const std::deque<Operation>& group);

  const Options options_;
  // Used by the thread alone.
  const std::unique_ptr<Database> database_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_STORE_H_
