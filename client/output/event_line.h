// One event as one line for people.
#ifndef AMPD_CLIENT_OUTPUT_EVENT_LINE_H_
#define AMPD_CLIENT_OUTPUT_EVENT_LINE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "ampd/v1/event.pb.h"

namespace ampd::client {

// The phases that took no step in the newest step report, as one with `every` may: their loss is NaN there, as is that
// of a phase none of whose losses was finite. A report counts the steps since the job's start, so that only the one
// before tells; where that is not known, as after going back, no phase is idle.
class IdlePhases {
 public:
  // Of a job's events the next one.
  void Observe(const v1::JobEvent& event);
  bool Has(const std::string& phase) const { return idle_.count(phase) > 0; }

 private:
  bool known_ = false;
  // By phase: applied and skipped.
  std::map<std::string, int64_t> attempted_;
  std::set<std::string> idle_;
};

// "12:00:01  step 40/400  loss 0.31  ...": local time of day, then what happened. `idle`: in that step report; their
// loss is "-".
std::string EventLine(const v1::JobEvent& event, const IdlePhases& idle = {});

// "FAILED DIVERGED: the loss ..." and the like: a failure's class and message.
std::string FailureText(const v1::Failure& failure);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_EVENT_LINE_H_
