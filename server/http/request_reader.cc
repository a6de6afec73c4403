#include "server/http/request_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/http/target.h"

namespace ampd {
namespace {

constexpr absl::string_view kLineEnd = "\r\n";
// A chunk's size with its extensions; and all that may follow the last chunk.
constexpr size_t kMaxLineBytes = 256;
constexpr size_t kMaxTrailerBytes = 4096;
constexpr size_t kMaxMethodBytes = 32;

bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::StrContains("!#$%&'*+-.^_`|~", absl::string_view(&c, 1));
}

bool IsToken(absl::string_view text) { return !text.empty() && absl::c_all_of(text, IsTokenCharacter); }

bool IsControl(char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }

absl::string_view StripBlanks(absl::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The values of all headers of that name.
std::vector<absl::string_view> ValuesOf(const HttpRequest& request, absl::string_view name) {
  std::vector<absl::string_view> values;
  for (const auto& [key, value] : request.headers) {
    if (absl::EqualsIgnoreCase(key, name)) values.push_back(value);
  }
  return values;
}

}  // namespace

void RequestReader::Take(absl::string_view bytes) {
  begun_ = begun_ || !bytes.empty();
  while (!bytes.empty() && !done()) {
    if (state_ == State::kHead) {
      TakeHead(&bytes);
    } else if (state_ == State::kBody || state_ == State::kChunk) {
      TakeBody(&bytes);
    } else {
      TakeLine(&bytes);
    }
  }
}

void RequestReader::TakeEnd() {
  if (!done()) Refuse(400, absl::InvalidArgumentError("the request ends early"));
}

void RequestReader::Refuse(int http_status, const absl::Status& status) {
  state_ = State::kDone;
  status_ = status;
  http_status_ = http_status;
}

bool RequestReader::TakeExpectation() { return std::exchange(expects_, false) && !done(); }

void RequestReader::TakeHead(absl::string_view* bytes) {
  constexpr absl::string_view kHeadEnd = "\r\n\r\n";
  const size_t before = text_.size();
  const size_t taken = std::min(bytes->size(), kMaxHeadBytes - before);
  absl::StrAppend(&text_, bytes->substr(0, taken));
  const size_t end = absl::string_view(text_).find(kHeadEnd, before - std::min(before, kHeadEnd.size() - 1));
  const size_t head = end == std::string::npos ? text_.size() : end + kHeadEnd.size();
  bytes->remove_prefix(head - before);
  text_.resize(head);
  const auto is_wrong = [](char c) { return IsControl(c) && c != '\r' && c != '\n' && c != '\t'; };
  if (std::any_of(text_.begin() + static_cast<std::ptrdiff_t>(before), text_.end(), is_wrong)) {
    return Refuse(400, absl::InvalidArgumentError("a control character in the request's head"));
  }
  if (end != std::string::npos) return ParseHead();
  if (head == kMaxHeadBytes) {
    Refuse(431,
           absl::InvalidArgumentError(absl::StrCat("the request's head is longer than ", kMaxHeadBytes, " bytes")));
  }
}

void RequestReader::ParseHead() {
  absl::string_view head = text_;
  head.remove_suffix(2 * kLineEnd.size());
  const std::vector<absl::string_view> lines = absl::StrSplit(head, kLineEnd);
  if (lines.size() > kMaxHeaders + 1) {
    return Refuse(431, absl::InvalidArgumentError(absl::StrCat("more than ", kMaxHeaders, " headers")));
  }
  if (!ParseFirstLine(lines[0])) return;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (!ParseHeader(lines[i])) return;
  }
  if (!TakeHost()) return;
  text_.clear();
  ExpectBody();
}

bool RequestReader::ParseFirstLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  const bool is_line = parts.size() == 3 && IsToken(parts[0]) && parts[0].size() <= kMaxMethodBytes &&
                       !parts[1].empty() && absl::c_none_of(parts[1], IsControl);
  const absl::string_view version = is_line ? parts[2] : "";
  if (version.size() != 8 || !absl::StartsWith(version, "HTTP/") || version[6] != '.' ||
      !absl::ascii_isdigit(static_cast<unsigned char>(version[5])) ||
      !absl::ascii_isdigit(static_cast<unsigned char>(version[7]))) {
    Refuse(400, absl::InvalidArgumentError("the first line is not METHOD PATH HTTP/1.1"));
    return false;
  }
  if (version[5] != '1') {
    Refuse(505, absl::UnimplementedError("only HTTP/1.1 and HTTP/1.0"));
    return false;
  }
  is_http10_ = version[7] == '0';
  request_.method = std::string(parts[0]);
  return ParseTarget(parts[1]);
}

bool RequestReader::ParseTarget(absl::string_view text) {
  absl::StatusOr<Target> target = ampd::ParseTarget(text);
  if (!target.ok()) {
    Refuse(400, target.status());
    return false;
  }
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  authority_ = std::move(target->authority);
  return true;
}

bool RequestReader::ParseHeader(absl::string_view line) {
  const size_t colon = line.find(':');
  const absl::string_view name = line.substr(0, colon);
  const absl::string_view value = colon == absl::string_view::npos ? "" : StripBlanks(line.substr(colon + 1));
  if (colon == absl::string_view::npos || !IsToken(name) ||
      absl::c_any_of(value, [](char c) { return IsControl(c) && c != '\t'; })) {
    Refuse(400, absl::InvalidArgumentError("a header is not NAME: VALUE"));
    return false;
  }
  request_.headers.emplace_back(name, value);
  return true;
}

bool RequestReader::TakeHost() {
  const size_t hosts = ValuesOf(request_, "Host").size();
  if (hosts > 1 || (hosts == 0 && !is_http10_)) {
    Refuse(400, absl::InvalidArgumentError(absl::StrCat("a request has one Host, this one ", hosts)));
    return false;
  }
  if (authority_.empty()) return true;
  std::erase_if(request_.headers, [](const auto& header) { return absl::EqualsIgnoreCase(header.first, "Host"); });
  request_.headers.emplace_back("Host", authority_);
  return true;
}

void RequestReader::ExpectBody() {
  const std::vector<absl::string_view> codings = ValuesOf(request_, "Transfer-Encoding");
  const std::vector<absl::string_view> lengths = ValuesOf(request_, "Content-Length");
  if (codings.size() + lengths.size() > 1 || (is_http10_ && !codings.empty())) {
    return Refuse(400, absl::InvalidArgumentError("a body's length is told twice, or in a way that HTTP/1.0 lacks"));
  }
  state_ = State::kDone;
  if (!lengths.empty()) ExpectLength(lengths[0]);
  if (!codings.empty()) {
    if (!absl::EqualsIgnoreCase(codings[0], "chunked")) {
      return Refuse(501, absl::UnimplementedError("of Transfer-Encoding there is only chunked"));
    }
    state_ = State::kChunkSize;
  }
  const auto expectation = ValuesOf(request_, "Expect");
  expects_ = expectation.size() == 1 && absl::EqualsIgnoreCase(expectation[0], "100-continue") && !is_http10_;
}

void RequestReader::ExpectLength(absl::string_view text) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  if (text.empty() || !absl::c_all_of(text, is_digit)) {
    return Refuse(400, absl::InvalidArgumentError("Content-Length is no number"));
  }
  is_body_too_long_ = !absl::SimpleAtoi(text, &left_) || left_ > kMaxBodyBytes;
  if (left_ > 0 && !is_body_too_long_) state_ = State::kBody;
}

void RequestReader::TakeBody(absl::string_view* bytes) {
  const size_t taken = std::min<uint64_t>(bytes->size(), left_);
  absl::StrAppend(&body_, bytes->substr(0, taken));
  bytes->remove_prefix(taken);
  left_ -= taken;
  if (left_ == 0) state_ = state_ == State::kBody ? State::kDone : State::kChunkEnd;
}

void RequestReader::TakeLine(absl::string_view* bytes) {
  const size_t end = bytes->find('\n');
  const size_t taken = end == absl::string_view::npos ? bytes->size() : end + 1;
  if (taken > kMaxLineBytes - text_.size()) {
    return Refuse(400, absl::InvalidArgumentError("a line of a chunked body is too long"));
  }
  absl::StrAppend(&text_, bytes->substr(0, taken));
  bytes->remove_prefix(taken);
  if (end == absl::string_view::npos) return;
  const std::string line = std::exchange(text_, "");
  if (!absl::EndsWith(line, kLineEnd)) {
    return Refuse(400, absl::InvalidArgumentError("a line of a chunked body does not end in CRLF"));
  }
  HandleLine(absl::string_view(line).substr(0, line.size() - kLineEnd.size()));
}

void RequestReader::HandleLine(absl::string_view line) {
  if (state_ == State::kChunkSize) return ExpectChunk(line);
  if (state_ == State::kChunkEnd) {
    if (!line.empty()) return Refuse(400, absl::InvalidArgumentError("a chunk is longer than it says"));
    state_ = State::kChunkSize;
    return;
  }
  trailer_bytes_ += line.size() + kLineEnd.size();
  if (trailer_bytes_ > kMaxTrailerBytes) {
    return Refuse(431, absl::InvalidArgumentError("what follows the last chunk is too long"));
  }
  if (line.empty()) state_ = State::kDone;
}

void RequestReader::ExpectChunk(absl::string_view line) {
  const absl::string_view digits = StripBlanks(line.substr(0, line.find(';')));
  const auto is_digit = [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); };
  if (digits.empty() || !absl::c_all_of(digits, is_digit)) {
    return Refuse(400, absl::InvalidArgumentError("a chunk's size is no number"));
  }
  const bool fits = absl::SimpleHexAtoi(digits, &left_) && left_ <= kMaxBodyBytes - body_.size();
  if (!fits) {
    is_body_too_long_ = true;
    state_ = State::kDone;
  } else {
    state_ = left_ == 0 ? State::kTrailer : State::kChunk;
  }
}

}  // namespace ampd
