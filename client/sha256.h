// SHA-256 of bytes that come piece by piece.
#ifndef AMPD_CLIENT_SHA256_H_
#define AMPD_CLIENT_SHA256_H_

#include <openssl/evp.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace ampd::client {

class Sha256 {
 public:
  Sha256() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

  void Update(absl::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  // 64 lower-case hex digits. Once, at the end.
  std::string HexDigest();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SHA256_H_
