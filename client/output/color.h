// Colours for people, where they look at a terminal and want them.
#ifndef AMPD_CLIENT_OUTPUT_COLOR_H_
#define AMPD_CLIENT_OUTPUT_COLOR_H_

#include <string>

#include "absl/strings/string_view.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"

namespace ampd::client {

enum class Color { kNone, kRed, kGreen, kYellow, kBlue, kGrey, kBold };

// What colours `text` on a terminal; `text` itself for kNone.
std::string Paint(Color color, absl::string_view text);

// Green runs or went well, yellow waits or is about to change, red went wrong.
Color ColorOf(v1::Job::State state);

// Of text that begins with the state's name, as "QUEUED (PRIORITY)"; else kNone.
Color ColorOfState(const std::string& text);

// Red what went wrong, yellow what to know, grey figures.
Color ColorOf(const v1::JobEvent& event);

// Whether a terminal is to have colours: NO_COLOR (https://no-color.org) is not set, or is empty, and TERM is not
// "dumb".
bool ColorsAreWanted();

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_COLOR_H_
