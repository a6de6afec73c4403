// Owners of OpenSSL's objects.
#ifndef AMPD_SERVER_FILES_OPENSSL_HANDLES_H_
#define AMPD_SERVER_FILES_OPENSSL_HANDLES_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace ampd::openssl {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

// Of a text, which outlives it.
inline Bio Open(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// What asks for a pass phrase in place of OpenSSL, which asks the terminal: there is none.
inline int NoPhrase(char*, int, int, void*) { return -1; }

// The next certificate, or key, of a PEM text; null: there is none, or it is damaged, or needs a pass phrase.
inline Certificate NextCertificate(BIO* pem) {
  return Certificate(PEM_read_bio_X509(pem, nullptr, &NoPhrase, nullptr));
}
inline Key NextKey(BIO* pem) { return Key(PEM_read_bio_PrivateKey(pem, nullptr, &NoPhrase, nullptr)); }

}  // namespace ampd::openssl

#endif  // AMPD_SERVER_FILES_OPENSSL_HANDLES_H_
