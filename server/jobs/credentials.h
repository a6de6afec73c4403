// Random credentials of workers. Only their hashes are stored.
#ifndef AMPD_SERVER_JOBS_CREDENTIALS_H_
#define AMPD_SERVER_JOBS_CREDENTIALS_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ampd {

// `count` bytes from the system's generator.
std::string RandomBytes(size_t count);

// 256 random bits in hexadecimal.
std::string NewCredential();

// SHA-256 (FIPS 180-4), 32 bytes.
std::string Sha256(absl::string_view data);

// Whether `credential` has the SHA-256 `hash`, in time that does not depend on where they differ; false for an empty
// `hash`.
bool MatchesHash(absl::string_view credential, absl::string_view hash);

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_CREDENTIALS_H_
