#include "client/output/text.h"

#include <time.h>

#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace ampd::client {
namespace {

std::string Scaled(double value, double step, const char* const* units, int count, const char* gap) {
  int unit = 0;
  // What would round to a full step is shown as one of the next unit.
  while (unit + 1 < count && value >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.5 ? 0 : 1;
  return absl::StrFormat("%.*f%s%s", digits, value, gap, units[unit]);
}

// By the C library, so that TZ means what it means to `date`.
std::string FormatLocal(const char* format, const google::protobuf::Timestamp& time) {
  const auto seconds = static_cast<time_t>(time.seconds());
  struct tm parts;
  // localtime_r may take TZ as it was at the first call.
  tzset();
  if (localtime_r(&seconds, &parts) == nullptr) return "-";
  char text[64];
  return std::string(text, strftime(text, sizeof(text), format, &parts));
}

}  // namespace

std::string Figure(double value) {
  // printf would tell its sign, which says nothing.
  if (std::isnan(value)) return "nan";
  if (value == std::floor(value) && std::fabs(value) < 1e9) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.4g", value);
}

std::string Count(double value) {
  static const char* const kUnits[] = {"", "k", "M", "G", "T"};
  return std::isfinite(value) ? Scaled(value, 1000, kUnits, std::size(kUnits), "") : Figure(value);
}

std::string Bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return Scaled(static_cast<double>(bytes), 1024, kUnits, std::size(kUnits), " ");
}

std::string Duration(double seconds) {
  constexpr double kLongest = 1e12;
  if (!(seconds >= 0 && seconds < kLongest)) return "-";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 100 * 3600) return absl::StrFormat("%dd %dh", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return absl::StrFormat("%d:%02d:%02d", s / 3600, s % 3600 / 60, s % 60);
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

std::string StepTime(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  return seconds < 1 ? absl::StrFormat("%.3g ms", seconds * 1e3) : absl::StrFormat("%.3g s", seconds);
}

std::string Percent(double ratio) { return absl::StrFormat("%.1f%%", 100 * ratio); }

std::string Dollars(double usd) { return usd < 1 ? absl::StrFormat("$%.3g", usd) : absl::StrFormat("$%.2f", usd); }

std::string TimeOfDay(const google::protobuf::Timestamp& time) { return FormatLocal("%H:%M:%S", time); }

std::string DateAndTime(const google::protobuf::Timestamp& time) {
  return time.seconds() == 0 ? "-" : FormatLocal("%Y-%m-%d %H:%M:%S", time);
}

std::string ZoneOf(const google::protobuf::Timestamp& time) { return FormatLocal("%Z", time); }

std::string UtcTime(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()), absl::UTCTimeZone());
}

std::string Clean(absl::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F steer a terminal as well.
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    if (c == '\n' || c == '\t') {
      out.push_back(' ');
    } else {
      out.push_back(c1 || absl::ascii_iscntrl(c) ? '?' : text[i]);
    }
  }
  return out;
}

std::string Truncate(absl::string_view text, int columns) {
  size_t end = 0;
  for (int column = 0; end < text.size(); ++end) {
    const bool starts = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (starts && column++ == columns) break;
  }
  return std::string(text.substr(0, end));
}

std::string Shorten(absl::string_view text, int columns) {
  std::string whole = Truncate(text, columns);
  if (whole.size() == text.size()) return whole;
  return Truncate(text, columns - 2) + "..";
}

}  // namespace ampd::client
