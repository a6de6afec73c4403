// What `watch` shows of a job's events.
#ifndef AMPD_CLIENT_OUTPUT_WATCH_VIEW_H_
#define AMPD_CLIENT_OUTPUT_WATCH_VIEW_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ampd/v1/event.pb.h"
#include "client/output/format.h"
#include "client/output/progress.h"

namespace ampd::client {

class WatchView {
 public:
  virtual ~WatchView() = default;
  virtual void OnEvent(const v1::JobEvent& event) = 0;
  virtual void OnLost(const absl::Status& status) = 0;
  virtual void OnResumed() = 0;
  // The job ended: the last line.
  virtual void OnEnd(const v1::StateChange& end) = 0;
  // Watching ends before the job does: leaves the terminal in order.
  virtual void OnDetach() = 0;
};

struct WatchViewOptions {
  Format format = Format::kTable;
  bool terminal = false;
  // Lines are coloured; of a terminal.
  bool color = false;
  // Show nothing at all.
  bool quiet = false;
  // Width of the terminal, asked anew for each line.
  std::function<int()> columns = [] { return 80; };
  // Messages about the connection.
  std::ostream* err;
};

// On a terminal, one live progress line under scrolling notable events. Elsewhere plain lines, of steps about one a
// second of the job's time, and the last before the job ends. In the machine-readable formats each event and nothing
// else.
std::unique_ptr<WatchView> MakeWatchView(const WatchViewOptions& options, std::ostream* out);

// Columns of the terminal behind `file`; 80 when it is none.
int TerminalColumns(int file);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_WATCH_VIEW_H_
