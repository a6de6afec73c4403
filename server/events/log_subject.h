// What a message of the daemon's log is about.
#ifndef AMPD_SERVER_EVENTS_LOG_SUBJECT_H_
#define AMPD_SERVER_EVENTS_LOG_SUBJECT_H_

#include <cstdint>
#include <functional>
#include <string>

namespace ampd {

struct LogSubject {
  // Empty: no job.
  std::string job_id;
  // 0: none.
  uint32_t attempt = 0;
};

// Takes a message, which does not repeat its subject.
using SubjectLog = std::function<void(const std::string& text, const LogSubject& about)>;

}  // namespace ampd

#endif  // AMPD_SERVER_EVENTS_LOG_SUBJECT_H_
