#include "client/output/color.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace ampd::client {
namespace {

const char* CodeOf(Color color) {
  switch (color) {
    case Color::kNone:
      break;
    case Color::kRed:
      return "31";
    case Color::kGreen:
      return "32";
    case Color::kYellow:
      return "33";
    case Color::kBlue:
      return "34";
    case Color::kGrey:
      return "90";
    case Color::kBold:
      return "1";
  }
  return "";
}

}  // namespace

std::string Paint(Color color, absl::string_view text) {
  if (color == Color::kNone || text.empty()) return std::string(text);
  return absl::StrCat("\x1b[", CodeOf(color), "m", text, "\x1b[0m");
}

Color ColorOf(v1::Job::State state) {
  switch (state) {
    case v1::Job::RUNNING:
    case v1::Job::SUCCEEDED:
      return Color::kGreen;
    case v1::Job::FAILED:
      return Color::kRed;
    case v1::Job::CANCELLED:
      return Color::kGrey;
    case v1::Job::QUEUED:
    case v1::Job::STARTING:
      return Color::kBlue;
    case v1::Job::PREEMPTING:
    case v1::Job::PAUSED:
    case v1::Job::RETRYING:
    case v1::Job::RECOVERING:
    case v1::Job::CANCELLING:
      return Color::kYellow;
    default:
      return Color::kNone;
  }
}

Color ColorOfState(const std::string& text) {
  v1::Job::State state;
  return v1::Job::State_Parse(text.substr(0, text.find(' ')), &state) ? ColorOf(state) : Color::kNone;
}

Color ColorOf(const v1::JobEvent& event) {
  switch (event.payload_case()) {
    case v1::JobEvent::kStateChange:
      return ColorOf(event.state_change().to());
    case v1::JobEvent::kLog:
      if (event.log().severity() == v1::LogLine::ERROR) return Color::kRed;
      return event.log().severity() == v1::LogLine::WARNING ? Color::kYellow : Color::kNone;
    case v1::JobEvent::kOverflowSkip:
    case v1::JobEvent::kRewound:
    case v1::JobEvent::kPrecisionChange:
    case v1::JobEvent::kCorruptSample:
      return Color::kYellow;
    case v1::JobEvent::kStep:
      return Color::kGrey;
    default:
      return Color::kNone;
  }
}

bool ColorsAreWanted() {
  const char* refused = getenv("NO_COLOR");
  const char* terminal = getenv("TERM");
  return (refused == nullptr || *refused == '\0') && terminal != nullptr && absl::string_view(terminal) != "dumb";
}

}  // namespace ampd::client
