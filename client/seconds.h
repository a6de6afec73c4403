// The check of options that are times.
#ifndef AMPD_CLIENT_SECONDS_H_
#define AMPD_CLIENT_SECONDS_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/spec/names.h"

namespace ampd::client {

// Refuses what is no number of seconds from `least` to `most`.
inline CLI::Validator Seconds(double least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    double seconds = 0;
    if (absl::SimpleAtod(text, &seconds) && seconds >= least && seconds <= most) return "";
    return absl::StrCat(Quoted(text), absl::StrFormat(" is no number of seconds from %.15g to %.15g", least, most));
  };
  return CLI::Validator(check, "");
}

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SECONDS_H_
