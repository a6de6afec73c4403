#include "server/jobs/credentials.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include "absl/strings/escaping.h"

namespace ampd {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  // Short reads happen above 256 bytes, errors only by signals: the source itself cannot fail once seeded.
  for (size_t have = 0; have < count;) {
    const ssize_t got = getrandom(bytes.data() + have, count - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return bytes;
}

std::string NewCredential() { return absl::BytesToHexString(RandomBytes(32)); }

std::string Sha256(absl::string_view data) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

bool MatchesHash(absl::string_view credential, absl::string_view hash) {
  const std::string actual = Sha256(credential);
  return hash.size() == actual.size() && CRYPTO_memcmp(actual.data(), hash.data(), actual.size()) == 0;
}

}  // namespace ampd
