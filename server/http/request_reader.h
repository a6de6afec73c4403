// The bytes of an HTTP/1 request as they come (RFC 9112), taken apart. What is read is hostile.
#ifndef AMPD_SERVER_HTTP_REQUEST_READER_H_
#define AMPD_SERVER_HTTP_REQUEST_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/exchange.h"

namespace ampd {

// Of a request's line and headers together.
inline constexpr size_t kMaxHeadBytes = 8192;
inline constexpr size_t kMaxHeaders = 100;
// Of a body, decoded. A longer one is not read; ReadBody() says so.
inline constexpr size_t kMaxBodyBytes = 64 << 10;

// Holds kMaxHeadBytes + kMaxBodyBytes at most, whatever comes. Used by one thread at a time.
//
// Stricter than RFC 9112 lets a server be, so that nobody reads a request otherwise: lines end in CRLF; a header is not
// folded and has no space before its colon; Content-Length comes once and not beside Transfer-Encoding, which is
// "chunked" or refused; HTTP/1.1 has one Host, HTTP/1.0 at most one. Of a target in absolute form (RFC 9112, 3.2.2)
// the authority is put in Host's place, so that nobody is told two; one that is no path is for the router to refuse.
class RequestReader {
 public:
  // Takes what came next. Once done() the rest is not looked at: of a connection only the first request is answered.
  void Take(absl::string_view bytes);
  // Nothing more will come: an error, unless it is done.
  void TakeEnd();
  // Makes the request one that is not answered: `status`, an error, as `http_status`. It is done then.
  void Refuse(int http_status, const absl::Status& status);

  // There is a whole request, one whose body is too long, or an error.
  bool done() const { return state_ == State::kDone; }
  // Whether anything came.
  bool begun() const { return begun_; }
  // Once: the client sends the body only after it has heard "100 Continue".
  bool TakeExpectation();

  // Once done.
  // An error: the request cannot be understood, and http_status() goes with it.
  const absl::Status& status() const { return status_; }
  int http_status() const { return http_status_; }
  // Without `peer`.
  HttpRequest& request() { return request_; }
  std::string& body() { return body_; }
  bool is_body_too_long() const { return is_body_too_long_; }

 private:
  enum class State { kHead, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };

  void TakeHead(absl::string_view* bytes);
  void TakeBody(absl::string_view* bytes);
  void TakeLine(absl::string_view* bytes);
  void ParseHead();
  // False, and refused.
  bool ParseFirstLine(absl::string_view line);
  bool ParseTarget(absl::string_view text);
  bool ParseHeader(absl::string_view line);
  bool TakeHost();
  void ExpectBody();
  void ExpectLength(absl::string_view text);
  void ExpectChunk(absl::string_view line);
  void HandleLine(absl::string_view line);

  State state_ = State::kHead;
  // The head; later a line of the chunked body.
  std::string text_;
  // Of the body or of the chunk: bytes that are still to come.
  uint64_t left_ = 0;
  size_t trailer_bytes_ = 0;
  bool begun_ = false;
  bool is_http10_ = false;
  bool expects_ = false;
  bool is_body_too_long_ = false;
  absl::Status status_;
  int http_status_ = 0;
  // Of the target, if it has one.
  std::string authority_;
  HttpRequest request_;
  std::string body_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_REQUEST_READER_H_
