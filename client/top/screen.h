// What `top` draws. Pure.
#ifndef AMPD_CLIENT_TOP_SCREEN_H_
#define AMPD_CLIENT_TOP_SCREEN_H_

#include <string>
#include <vector>

#include "client/top/state.h"

namespace ampd::client {

struct TopView {
  int columns = 80;
  int rows = 24;
  // The job with the curves: its id. That of a job that is not there is the first one's.
  std::string selected;
  // Jobs that have ended are shown, too.
  bool ended = true;
  bool color = false;
  // No characters beyond ASCII.
  bool ascii = false;
};

// The jobs that the view shows, in order.
std::vector<const v1::Job*> ShownJobs(const TopState& state, const TopView& view);

// At most `rows` lines of at most `columns` columns, escapes for colours aside: a head, the devices, the jobs, the
// curves of the selected one, keys. What has no room is left out, and counted.
std::vector<std::string> TopScreen(const TopState& state, const TopView& view);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_SCREEN_H_
