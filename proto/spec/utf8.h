#ifndef AMPD_PROTO_SPEC_UTF8_H_
#define AMPD_PROTO_SPEC_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace ampd {

// Bytes of the UTF-8 character at the start of `text`, which is not empty; 0 when there is none (RFC 3629: shortest
// form, no surrogates).
size_t Utf8Length(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_UTF8_H_
