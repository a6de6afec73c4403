#ifndef AMPD_PROTO_SPEC_UTF8_H_
#define AMPD_PROTO_SPEC_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace ampd {

// Bytes of the UTF-8 character at the start of `text`, which is not empty; 0 when there is none (RFC 3629: shortest
// form, no surrogates).
size_t Utf8Length(absl::string_view text);

// `bytes` as UTF-8: each byte that is part of no character (as Utf8Length() has them) is replaced by U+FFFD.
std::string ValidUtf8(absl::string_view bytes);

// The same for every text in `message` and in the messages within it: one that is no UTF-8 would be written, but not
// read again. Fields of bytes stay as they are.
void MakeValidUtf8(google::protobuf::Message* message);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_UTF8_H_
