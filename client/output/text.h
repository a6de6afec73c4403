// Figures and foreign text as people read them.
#ifndef AMPD_CLIENT_OUTPUT_TEXT_H_
#define AMPD_CLIENT_OUTPUT_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/timestamp.pb.h"

namespace ampd::client {

// Four significant digits: "0.3121", "65536", "1e+30", "nan".
std::string Figure(double value);

// "950", "9.1k", "12M".
std::string Count(double value);

// "512 B", "1.5 KiB", "139 GiB".
std::string Bytes(int64_t bytes);

// "0:07", "12:05", "3:00:07", "2d 4h".
std::string Duration(double seconds);

// A short time: "12.5 us", "1.25 ms", "2.1 s"; three significant digits.
std::string StepTime(double seconds);

// Of a ratio: "41.2%".
std::string Percent(double ratio);

// US dollars: "$0.0223", "$12.35".
std::string Dollars(double usd);

// "12:00:01" in the time zone of the user: TZ, else the machine's.
std::string TimeOfDay(const google::protobuf::Timestamp& time);

// "2026-01-31 12:00:01" there; "-" when not set.
std::string DateAndTime(const google::protobuf::Timestamp& time);

// That time zone's abbreviation at the time: "CET", "UTC".
std::string ZoneOf(const google::protobuf::Timestamp& time);

// "2026-01-31T12:00:01Z"; "-" when not set.
std::string UtcTime(const google::protobuf::Timestamp& time);

// Text from elsewhere, fit for a terminal: on one line, control characters replaced by '?'.
std::string Clean(absl::string_view text);

// The first `columns` columns of UTF-8 text, one column a character.
std::string Truncate(absl::string_view text, int columns);

// Likewise, with ".." in place of the last two where something is left out; at least 2 columns.
std::string Shorten(absl::string_view text, int columns);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_TEXT_H_
