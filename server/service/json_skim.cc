#include "server/service/json_skim.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace ampd {
namespace {

constexpr size_t kMaxStringBytes = 64;
constexpr size_t kMaxDigits = 64;

}  // namespace

void JsonSkimmer::TakeInString(char c) {
  const bool ends = c == '"' && !escaped_;
  escaped_ = c == '\\' && !escaped_;
  if (ends) {
    in_string_ = false;
    EndString();
  } else if (text_.size() < kMaxStringBytes) {
    text_ += c;
  }
}

void JsonSkimmer::EndString() {
  double number = 0;
  // Of a longer one the end is not known.
  if (found_quoted_ || !IsValueOf(quoted_) || text_.size() >= kMaxStringBytes) return;
  if (absl::SimpleAtod(text_, &number)) found_quoted_ = number;
}

void JsonSkimmer::EndValue() {
  double number = 0;
  if (!found_plain_ && !digits_.empty() && absl::SimpleAtod(digits_, &number)) found_plain_ = number;
  digits_.clear();
}

void JsonSkimmer::Take(char c) {
  if (in_string_) return TakeInString(c);
  switch (c) {
    case '"':
      in_string_ = true;
      text_.clear();
      break;
    case ':':
      if (depth_ == 1) outer_key_ = text_;
      if (depth_ == 2) inner_key_ = text_;
      break;
    case '{':
    case '[':
      if (++depth_ == 2) inside_ = c == '{' && outer_key_ == outer_;
      inner_key_.clear();
      break;
    case '}':
    case ']':
      EndValue();
      if (--depth_ < 2) inside_ = false;
      inner_key_.clear();
      break;
    case ',':
      EndValue();
      inner_key_.clear();
      break;
    default:
      if (!IsValueOf(plain_) || absl::ascii_isspace(static_cast<unsigned char>(c))) break;
      if (digits_.size() < kMaxDigits) digits_ += c;
  }
}

}  // namespace ampd
