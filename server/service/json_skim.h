// One number of a large JSON text, found without keeping the text.
#ifndef AMPD_SERVER_SERVICE_JSON_SKIM_H_
#define AMPD_SERVER_SERVICE_JSON_SKIM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace ampd {

// Finds N in {"OUTER": {"INNER": N}}, whatever else stands there, in text that comes piece by piece. Takes a few
// hundred bytes. What is no JSON may have any answer. Keys with escapes are not matched. Not thread safe.
class JsonSkimmer {
 public:
  JsonSkimmer(std::string outer, std::string inner) : outer_(std::move(outer)), inner_(std::move(inner)) {}

  void Feed(absl::string_view piece) {
    for (const char c : piece) Take(c);
  }
  // The first; empty while none has come.
  std::optional<double> number() const { return found_; }

 private:
  void Take(char c);
  void TakeInString(char c);
  void EndValue();

  const std::string outer_;
  const std::string inner_;
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  // Within the object that OUTER names.
  bool inside_ = false;
  // The last string, as far as it may matter, and the keys of the values at the two depths.
  std::string text_;
  std::string outer_key_;
  std::string inner_key_;
  std::string digits_;
  std::optional<double> found_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_JSON_SKIM_H_
