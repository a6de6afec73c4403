// Certificates for tests.
#ifndef AMPD_TESTS_UNIT_SERVER_AUTH_CERTIFICATE_PAIR_H_
#define AMPD_TESTS_UNIT_SERVER_AUTH_CERTIFICATE_PAIR_H_

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdint>
#include <string>

namespace ampd {

struct Pair {
  std::string certificate, key;
};

inline std::string Drain(BIO* bio) {
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  const std::string text(data, size);
  BIO_free(bio);
  return text;
}

// Signed by itself, good for `seconds` from now on; `phrase` for its key, where not empty.
inline Pair MakePair(int64_t seconds, const std::string& phrase = "") {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  Pair pair;
  BIO* bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(PEM_write_bio_X509(bio, certificate), 1);
  pair.certificate = Drain(bio);
  bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(PEM_write_bio_PrivateKey(bio, key, phrase.empty() ? nullptr : EVP_aes_256_cbc(), nullptr, 0, nullptr,
                                     phrase.empty() ? nullptr : const_cast<char*>(phrase.c_str())),
            1);
  pair.key = Drain(bio);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pair;
}

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_AUTH_CERTIFICATE_PAIR_H_
