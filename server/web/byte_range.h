// Which part of a file a request asks for (RFC 9110, 13.1.5 and 14). What is read is hostile.
#ifndef AMPD_SERVER_WEB_BYTE_RANGE_H_
#define AMPD_SERVER_WEB_BYTE_RANGE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/http/exchange.h"

namespace ampd {

struct ByteRange {
  // The first byte, from 0, and how many, >= 1.
  int64_t offset = 0;
  int64_t length = 0;
};

// What a GET asks for of a file of `size` bytes, >= 0, whose ETag is `tag`, quotes included. nullopt: the whole. So is
// what need not be understood: several ranges, other units, what keeps to no rule, an If-Range that names other bytes,
// and a Range of another method. OUT_OF_RANGE where the range holds no byte of the file.
absl::StatusOr<std::optional<ByteRange>> RangeOf(const HttpRequest& request, int64_t size, absl::string_view tag);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_BYTE_RANGE_H_
