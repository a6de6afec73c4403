// Two numbers of a large JSON text, found without keeping the text.
#ifndef AMPD_SERVER_SERVICE_JSON_SKIM_H_
#define AMPD_SERVER_SERVICE_JSON_SKIM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace ampd {

// Finds N and T in {"OUTER": {"PLAIN": N, "QUOTED": "T"}}, in any order and whatever else stands there, in text that
// comes piece by piece. Takes a few hundred bytes. What is no JSON may have any answer. Keys with escapes are not
// matched, nor is a T of 64 bytes or more. Not thread safe.
class JsonSkimmer {
 public:
  JsonSkimmer(std::string outer, std::string plain, std::string quoted)
      : outer_(std::move(outer)), plain_(std::move(plain)), quoted_(std::move(quoted)) {}

  void Feed(absl::string_view piece) {
    for (const char c : piece) Take(c);
  }
  // The first of each; empty while none has come. T may be NaN or infinite.
  std::optional<double> plain() const { return found_plain_; }
  std::optional<double> quoted() const { return found_quoted_; }

 private:
  void Take(char c);
  void TakeInString(char c);
  void EndString();
  void EndValue();
  bool IsValueOf(const std::string& key) const { return inside_ && depth_ == 2 && inner_key_ == key; }

  const std::string outer_;
  const std::string plain_;
  const std::string quoted_;
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
  std::optional<double> found_plain_;
  std::optional<double> found_quoted_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_JSON_SKIM_H_
