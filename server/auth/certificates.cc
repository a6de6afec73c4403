#include "server/auth/certificates.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "server/files/files.h"
#include "server/files/openssl_handles.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

using openssl::Certificate;
using openssl::Key;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(absl::StrCat("open ", path), errno);
  std::string text;
  std::string piece(64 << 10, '\0');
  while (true) {
    const ssize_t got = read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(absl::StrCat("read ", path), errno);
    if (got == 0) return text;
    text.append(piece, 0, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 MiB"));
  }
}

absl::StatusOr<Certificate> FirstCertificate(const std::string& pem, const std::string& path) {
  Certificate certificate = openssl::NextCertificate(openssl::Open(pem).get());
  if (certificate == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no certificate in PEM"));
  return certificate;
}

absl::StatusOr<Key> ReadKey(const std::string& pem, const std::string& path) {
  Key key = openssl::NextKey(openssl::Open(pem).get());
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no private key in PEM, or one with a pass phrase"));
  }
  return key;
}

absl::Time EndOf(const X509* certificate) {
  tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return absl::InfinitePast();
  return absl::FromTM(end, absl::UTCTimeZone());
}

// Changes whenever a file is written, replaced, or reached through another link.
std::string StampOf(const CertificatePaths& paths) {
  std::string stamp;
  for (const std::string& path : {paths.certificate, paths.private_key, paths.client_ca}) {
    struct stat info {};
    if (path.empty()) continue;
    if (stat(path.c_str(), &info) != 0) {
      absl::StrAppend(&stamp, "error ", errno, ";");
      continue;
    }
    absl::StrAppend(&stamp, info.st_dev, " ", info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, ".",
                    info.st_mtim.tv_nsec, " ", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec, ";");
  }
  return stamp;
}

std::string Until(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", time, absl::UTCTimeZone()); }

}  // namespace

absl::Time EndOfCertificate(const std::string& pem) {
  const Certificate certificate = openssl::NextCertificate(openssl::Open(pem).get());
  return certificate == nullptr ? absl::InfinitePast() : EndOf(certificate.get());
}

absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths) {
  Certificates read;
  AMPD_ASSIGN_OR_RETURN(read.certificate, ReadFile(paths.certificate));
  AMPD_ASSIGN_OR_RETURN(read.private_key, ReadFile(paths.private_key));
  AMPD_ASSIGN_OR_RETURN(const Certificate certificate, FirstCertificate(read.certificate, paths.certificate));
  AMPD_ASSIGN_OR_RETURN(const Key key, ReadKey(read.private_key, paths.private_key));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(paths.private_key, ": is not the key of the certificate in ", paths.certificate));
  }
  read.not_after = EndOf(certificate.get());
  if (paths.client_ca.empty()) return read;
  AMPD_ASSIGN_OR_RETURN(read.client_ca, ReadFile(paths.client_ca));
  AMPD_RETURN_IF_ERROR(FirstCertificate(read.client_ca, paths.client_ca).status());
  return read;
}

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Open(CertificatePaths paths, Log log) {
  std::unique_ptr<CertificateFiles> files(new CertificateFiles(std::move(paths), std::move(log)));
  const MutexLock lock(&files->mutex_);
  // Before they are read, so that what changes meanwhile is read again.
  files->stamp_ = StampOf(files->paths_);
  AMPD_ASSIGN_OR_RETURN(files->untaken_, ReadCertificates(files->paths_));
  // Refusing it would end the training as well.
  if (files->untaken_->not_after <= absl::Now()) {
    files->log_(absl::StrCat(files->paths_.certificate, ": the certificate expired at ",
                             Until(files->untaken_->not_after), "; clients will refuse it"),
                true);
  }
  return files;
}

absl::StatusOr<Certificates> CertificateFiles::ReadUsable() const {
  AMPD_ASSIGN_OR_RETURN(Certificates read, ReadCertificates(paths_));
  if (read.not_after > absl::Now()) return read;
  return absl::InvalidArgumentError(
      absl::StrCat(paths_.certificate, ": the certificate expired at ", Until(read.not_after)));
}

std::optional<Certificates> CertificateFiles::TakeNew() {
  const MutexLock lock(&mutex_);
  std::string stamp = StampOf(paths_);
  if (stamp != stamp_) {
    absl::StatusOr<Certificates> read = ReadUsable();
    // What could not be read may be readable the next time, though it did not change: for want of descriptors, say.
    std::string failed = read.ok() ? "" : absl::StrCat(stamp, read.status().message());
    const bool told = failed == failed_;
    failed_ = std::move(failed);
    if (read.ok()) {
      stamp_ = std::move(stamp);
      log_(absl::StrCat("TLS: the certificate in ", paths_.certificate, " is new; it holds until ",
                        Until(read->not_after)),
           false);
      untaken_ = *std::move(read);
    } else if (!told) {
      log_(absl::StrCat("TLS: the files changed and cannot be used, those of before stay in use: ",
                        read.status().message()),
           true);
    }
  }
  return std::exchange(untaken_, std::nullopt);
}

}  // namespace ampd
