// One event as one line for people.
#ifndef AMPD_CLIENT_OUTPUT_EVENT_LINE_H_
#define AMPD_CLIENT_OUTPUT_EVENT_LINE_H_

#include <string>

#include "ampd/v1/event.pb.h"

namespace ampd::client {

// "12:00:01  step 40/400  loss 0.31  ...": local time of day, then what happened.
std::string EventLine(const v1::JobEvent& event);

// "FAILED DIVERGED: the loss ..." and the like: a failure's class and message.
std::string FailureText(const v1::Failure& failure);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_EVENT_LINE_H_
