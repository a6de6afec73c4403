// How many requests may be under way, so that the port's threads are never all taken.
#ifndef AMPD_SERVER_WEB_SLOTS_H_
#define AMPD_SERVER_WEB_SLOTS_H_

#include <map>
#include <memory>
#include <string>

#include "engine/core/mutex.h"

namespace ampd {

// Thread-safe.
class Slots {
 public:
  // At most `all` at a time, >= 1.
  explicit Slots(int all) : all_(all) {}
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // One slot until it is destroyed, before the Slots.
  class Lease {
   public:
    ~Lease() { slots_->GiveBack(client_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    friend class Slots;
    Lease(Slots* slots, std::string client) : slots_(slots), client_(std::move(client)) {}
    Slots* const slots_;
    const std::string client_;
  };

  // Null where there is none, or the client has `per_client` already.
  std::unique_ptr<Lease> Take(const std::string& client, int per_client);

 private:
  void GiveBack(const std::string& client);

  const int all_;
  Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> clients_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_SLOTS_H_
