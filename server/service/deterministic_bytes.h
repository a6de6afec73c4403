// Messages as bytes that equal messages share.
#ifndef AMPD_SERVER_SERVICE_DETERMINISTIC_BYTES_H_
#define AMPD_SERVER_SERVICE_DETERMINISTIC_BYTES_H_

#include <string>

#include "google/protobuf/message.h"

namespace ampd {

// `message` on the wire, with maps sorted by key: otherwise they have no order.
std::string DeterministicBytes(const google::protobuf::Message& message);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DETERMINISTIC_BYTES_H_
