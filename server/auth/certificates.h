// The files of a server's TLS, read again when they change.
#ifndef AMPD_SERVER_AUTH_CERTIFICATES_H_
#define AMPD_SERVER_AUTH_CERTIFICATES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"

namespace ampd {

struct CertificatePaths {
  // PEM: the server's certificate, then those between it and a root.
  std::string certificate;
  // PEM, without a pass phrase.
  std::string private_key;
  // PEM: authorities of clients; empty: clients show no certificate.
  std::string client_ca;
};

// The files' contents, which fit together.
struct Certificates {
  std::string certificate;
  std::string private_key;
  std::string client_ca;
  // The end of the server's own certificate.
  absl::Time not_after;
};

// INVALID_ARGUMENT naming the file for what is no PEM, holds no certificate, needs a pass phrase, or a key that is not
// the certificate's; the file system's errors.
absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths);

// The end of the first certificate of a PEM text; the infinite past where there is none.
absl::Time EndOfCertificate(const std::string& pem);

// Thread safe.
class CertificateFiles {
 public:
  // Told of each change, and once of each set of files that cannot be used. Must not block.
  using Log = std::function<void(const std::string& text, bool warning)>;

  // Errors as ReadCertificates.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Open(CertificatePaths paths, Log log);

  // What is to be used, where that is not what the call before gave; the first call gives what Open() read. Looks
  // whether the files changed. New ones that cannot be used, or have expired, leave those of before in use.
  std::optional<Certificates> TakeNew();

 private:
  CertificateFiles(CertificatePaths paths, Log log) : paths_(std::move(paths)), log_(std::move(log)) {}

  absl::StatusOr<Certificates> ReadUsable() const;

  const CertificatePaths paths_;
  const Log log_;
  Mutex mutex_;
  // Of the files in use.
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  // Why the files as they are cannot be used, with their stamp, as was told; empty: they can.
  std::string failed_ ABSL_GUARDED_BY(mutex_);
  std::optional<Certificates> untaken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_CERTIFICATES_H_
