// SHA-256, as the text that uploads are known by: 64 lower-case hex digits.
#ifndef AMPD_SERVER_SERVICE_SHA256_H_
#define AMPD_SERVER_SERVICE_SHA256_H_

#include <openssl/evp.h>

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace ampd {

// Of bytes that come piece by piece. Not thread safe.
class Sha256Stream {
 public:
  Sha256Stream() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

  void Update(absl::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }

  // Once, at the end.
  std::string HexDigest() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

inline std::string Sha256Hex(absl::string_view bytes) {
  Sha256Stream stream;
  stream.Update(bytes);
  return stream.HexDigest();
}

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_SHA256_H_
