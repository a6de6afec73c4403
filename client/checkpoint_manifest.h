// MANIFEST, the list of a downloaded checkpoint's files. What is read is hostile.
#ifndef AMPD_CLIENT_CHECKPOINT_MANIFEST_H_
#define AMPD_CLIENT_CHECKPOINT_MANIFEST_H_

#include <openssl/evp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd::client {

inline constexpr char kManifest[] = "MANIFEST";
inline constexpr size_t kMaxManifestBytes = 1 << 20;

// SHA-256 of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

  void Update(absl::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  // 64 lower-case hex digits. Once, at the end.
  std::string HexDigest();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

// What a file's bytes are.
struct FileContent {
  std::string sha256;
  int64_t size = 0;

  bool operator==(const FileContent& other) const { return sha256 == other.sha256 && size == other.size; }
};

// By name, the files that lines "<sha256> <size> <name>" list; MANIFEST, whose last line is about those before it, is
// not among them. DATA_LOSS where they do not match that line, or one is none.
absl::StatusOr<std::map<std::string, FileContent>> ParseManifest(absl::string_view text);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CHECKPOINT_MANIFEST_H_
